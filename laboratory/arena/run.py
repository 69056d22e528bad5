"""A run of the arena: a sweep whose cells are runs of policies; what was played before is not played again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from paceline.base.errors import ArgumentError, check_least, check_within
from paceline.base.terminal import Interrupts, held_interrupts, tell
from paceline.decoding.steps import UnavailableStepError
from paceline.policies.by_name import PolicySpec
from paceline.runs.cells import CellStore, key_of
from paceline.runs.workers import kept_processes, play_cells
from paceline.traces.errors import TraceFormatError
from paceline.traces.opening import open_recording

from . import versions
from .board import TARGET_ALONE, oracle_cells, oracles
from .cells import ArenaCell, check_buildable, given_to, needs_head, with_heads
from .play import RecordingStage, play
from .played import BEST_STATIC, LeftOut, Played, outcome_from_json, outcome_to_json
from .recordings import RecordingShelf, RecordingUnavailableError
from .statics import CellStatics


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaRun:
    """A policy in a cell at a seed, as a cell of a sweep (`paceline.runs.cells.CellWork`)."""

    trace: Path  # folder of the recording
    cell: ArenaCell
    policy: str
    seed: int
    made_of: Mapping[str, str]  # hashes of the recording, of the ladder's seconds, and of the code that plays
    given: tuple[tuple[str, str], ...] = ()  # options of the policy besides those that its name says, by name

    @property
    def asked(self) -> dict[str, Any]:
        """See `CellWork`."""
        return {"cell": str(self.cell), "policy": self.policy, "seed": self.seed, "made_of": dict(self.made_of)}

    @property
    def spec(self) -> PolicySpec:
        """The policy with all its options; raises PolicySpecError for a name that is none."""
        named = PolicySpec.parse(self.policy)
        return replace(named, options={**named.options, **dict(self.given)})

    def __str__(self) -> str:
        return f"{self.policy} in {self.cell}, seed {self.seed}"

    def play(self) -> dict[str, Any]:
        """What came of it; what a policy lacks is no failure, and one that is not ours is raised."""
        try:
            return outcome_to_json(self._outcome())
        except TraceFormatError:
            raise
        except UnavailableStepError as error:
            why = f"not applicable: {error.reason}"
        except ValueError as error:  # of a policy's own errors the loop makes a PolicyError
            why = str(error)
        left_out = LeftOut(cell=self.cell, policy=self.policy, seed=self.seed, why=" ".join(why.split()))
        return outcome_to_json(left_out)

    def _outcome(self) -> Played:
        stage, statics = stage_of(self.trace)
        if self.policy == BEST_STATIC:
            return statics.best(self.cell, self.seed)
        return play(stage, self.cell, self.spec, self.seed)


@lru_cache(maxsize=1)
def stage_of(trace: Path) -> tuple[RecordingStage, CellStatics]:
    """A recording, kept for the next run on it."""
    stage = RecordingStage(open_recording(trace))
    return stage, CellStatics(stage)


STATICS = "paceline_laboratory.arena.statics"
MOST_SEEDS = 1_000  # every run of every cell is listed before the first is played


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaAsked:
    """What is to be played; raises ArgumentError for a number out of range."""

    cells: Sequence[ArenaCell]  # at least one
    # built anew for every run; the target alone and the best static chain of each cell are played besides
    policies: Sequence[PolicySpec]
    seeds: int  # of each cell, 1 to `MOST_SEEDS`; 0 is the recorded order of requests
    jobs: int  # processes, >= 1
    work: Path  # folder of recordings and results
    make: bool = False  # whether recordings that take minutes are made where they lack
    oracles: bool = False  # whether oracles are played as well, in the cells that `regret` says
    # recordings that policies may be fitted to beforehand, by name, those that cannot be had left out
    tuning: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_least("`cells`", len(self.cells), 1)
        check_within("`seeds`", self.seeds, f"[1, {MOST_SEEDS}]")
        check_least("`jobs`", self.jobs, 1)

    def entrants(self, cell: ArenaCell) -> Iterator[tuple[str, int]]:
        """Who plays in a cell at which seed, the best static chain first, since all else is compared with it."""
        labels = [spec.label for spec in self.policies]
        for label in (BEST_STATIC, *(() if TARGET_ALONE in labels else (TARGET_ALONE,)), *labels):
            for seed in range(self.seeds):
                yield label, seed
        if self.oracles and oracle_cells([cell]):
            yield from ((spec.label, 0) for spec in oracles())


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaResults:
    """All runs played, by cell, policy and seed; policies that need what a recording or a cost lacks are left out."""

    played: tuple[Played, ...]
    left_out: tuple[LeftOut, ...]
    failed: tuple[str, ...]  # runs that ended in an error which is nobody's input, a line each
    missing: Mapping[str, str]
    num_kept: int
    is_whole: bool

    def gaps(self) -> Iterator[str]:
        """What a leaderboard lacks besides recordings: runs that failed, and cells without what others stand beside."""
        yield from self.failed
        for one in self.left_out:
            if one.policy == BEST_STATIC:
                yield f"cell {one.cell} is left out at seed {one.seed}, which has no best static chain: {one.why}"


def run_arena(asked: ArenaAsked) -> ArenaResults:
    """Play whatever is not in the store, and return all that was asked for.

    An interrupt ends it; what was played before stays in the store. A second one raises KeyboardInterrupt.

    Raises:
        ArgumentError: no recording of the cells can be had.
        PolicySpecError: a policy that was named can be built for none of them.
        TraceFormatError: a recording breaks its format.
    """
    with held_interrupts() as interrupts:
        traces, missing = _recordings(asked, [cell.recording for cell in asked.cells], interrupts)
        if not traces and missing:
            told = "; ".join(f"{name}: {why}" for name, why in missing.items())
            raise ArgumentError(f"`cells` must have a recording that can be had, got {told}")
        asked = _fitted(asked, interrupts)
        check_buildable(asked.policies, traces.values())
        runs = list(_asked_runs(asked, traces))
    for name, why in missing.items():
        tell(f"recording {name} is left out: {why}")
    store = CellStore(asked.work)
    finished, _ = store.keys()
    tell(f"{len(runs):,} runs, of which {sum(key_of(run.asked) in finished for run in runs):,} were played before")
    # All of a cell in one process, which searches for its best static chain once.
    tasks = [list(group) for _, group in groupby(runs, key=lambda run: run.cell)]
    with kept_processes():
        done = play_cells([] if interrupts.heard() else tasks, asked.work, jobs=asked.jobs, again=True, unit="runs")
    found = [store.read(key_of(run.asked)) for run in runs]
    outcomes = [outcome_from_json(one.figures) for one in found if one is not None and one.figures is not None]
    failed = [f"failed: {run}: {why}" for run, why in (*done.failed, *done.lost)]
    looked_for = {*traces, *missing}  # not all of them where an interrupt came meanwhile
    return ArenaResults(
        played=tuple(one for one in outcomes if isinstance(one, Played)),
        left_out=tuple(one for one in outcomes if isinstance(one, LeftOut)),
        failed=tuple(failed),
        missing=missing,
        num_kept=done.kept,
        is_whole=len(outcomes) + len(failed) == len(runs) and all(cell.recording in looked_for for cell in asked.cells),
    )


def _fitted(asked: ArenaAsked, interrupts: Interrupts) -> ArenaAsked:
    if not any(map(needs_head, asked.policies)):
        return asked
    tuning, _ = _recordings(asked, asked.tuning, interrupts)
    return replace(asked, policies=with_heads(asked.policies, tuning, asked.work))


def _recordings(
    asked: ArenaAsked, names: Iterable[str], interrupts: Interrupts
) -> tuple[dict[str, Path], dict[str, str]]:
    """Folders of recordings, and why others are not there."""
    shelf = RecordingShelf(work=asked.work)
    found: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(names):
        if interrupts.heard():
            break
        try:
            if name not in shelf.entries:
                raise RecordingUnavailableError("nothing makes it")
            if not (asked.make or shelf.is_at_hand(name)):
                raise RecordingUnavailableError("it is not made yet; --make does, in minutes")
            found[name] = shelf.recording(name)
        except RecordingUnavailableError as error:
            missing[name] = str(error)
    return found, missing


def _asked_runs(asked: ArenaAsked, traces: Mapping[str, Path]) -> Iterator[ArenaRun]:
    specs = (PolicySpec.parse(TARGET_ALONE), *asked.policies, *(oracles() if asked.oracles else ()))
    code = {spec.label: versions.policy_version(spec) for spec in specs}
    code[BEST_STATIC] = versions.code_version([STATICS], without=versions.NO_SIMULATOR)
    given = {spec.label: given_to(spec) for spec in asked.policies}
    simulator = versions.simulator_version()
    for name, cells in groupby(asked.cells, key=lambda cell: cell.recording):
        if name not in traces:
            continue
        recording, of_recording = open_recording(traces[name]), versions.recording_version(traces[name])
        version_of = cache(partial(versions.ladder_version, recording=recording))
        for cell in cells:
            made_of = {"recording": of_recording, "ladder": version_of(cell.ladder), "simulator": simulator}
            for label, seed in asked.entrants(cell):
                yield ArenaRun(
                    trace=traces[name],
                    cell=cell,
                    policy=label,
                    seed=seed,
                    made_of=made_of | {"policy": code[label]},
                    given=given.get(label, ()),
                )
