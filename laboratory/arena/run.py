"""A run of the arena: a sweep whose cells are runs of policies; earlier results are not played again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from paceline.base.errors import ArgumentError
from paceline.base.terminal import Interrupts, held_interrupts, tell
from paceline.decoding.steps import UnavailableStepError
from paceline.policies.by_name import PolicySpec
from paceline.runs.cells import CellStore, key_of
from paceline.runs.workers import kept_processes, play_cells
from paceline.studies.grids import CODE_OF, code_hash, inputs_of
from paceline.traces.errors import TraceFormatError
from paceline.traces.opening import open_recording

from .board import ORACLES, TARGET_ALONE, oracle_cells
from .cells import HEAD, ArenaCell, check_buildable, needs_head, with_heads
from .play import BEST_STATIC, Played, RecordingStage, play
from .recordings import RecordingShelf, RecordingUnavailableError
from .statics import CellStatics


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaRun:
    """A policy in a cell at a seed, as a cell of a sweep (`paceline.runs.cells.CellWork`)."""

    trace: Path  # folder of the recording
    cell: ArenaCell
    policy: str
    seed: int
    made_of: Mapping[str, str]  # hashes of the recording, of the code, and of files that the policy names
    head: str | None = None  # the file of the acceptance head that the policy gets in addition to its named options

    @property
    def asked(self) -> dict[str, Any]:
        """See `CellWork`."""
        return {"cell": str(self.cell), "policy": self.policy, "seed": self.seed, "made_of": dict(self.made_of)}

    def __str__(self) -> str:
        return f"{self.policy} in {self.cell}, seed {self.seed}"

    def play(self) -> dict[str, Any]:
        """Fields of `Played` or `LeftOut`: a policy's unmet need is no failure; raises errors of others."""
        try:
            return _figures(self._played())
        except TraceFormatError:
            raise
        except UnavailableStepError as error:
            why = f"not applicable: {error.reason}"
        except ValueError as error:  # the loop turns a policy's own errors into PolicyError
            why = str(error)
        return {"why": " ".join(why.split())}

    def _played(self) -> Played:
        stage, statics = stage_of(self.trace)
        if self.policy == BEST_STATIC:
            return statics.best(self.cell, self.seed)
        named = PolicySpec.parse(self.policy)
        given = {} if self.head is None else {HEAD: self.head}
        return play(stage, self.cell, replace(named, options={**named.options, **given}), self.seed)

    def outcome(self, figures: Mapping[str, Any]) -> "Played | LeftOut":
        """The result of `play`, also after JSON."""
        if "why" in figures:
            return LeftOut(run=self, why=figures["why"])
        values = {**figures, "seconds_at": tuple(figures["seconds_at"])}
        return Played(cell=self.cell, policy=self.policy, seed=self.seed, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A policy without a run in a cell."""

    run: ArenaRun
    why: str  # what it lacks, or that it is not applicable and why, in one line


def _figures(played: Played) -> dict[str, Any]:
    return {name: value for name, value in asdict(played).items() if name not in ("cell", "policy", "seed")}


@lru_cache(maxsize=1)
def stage_of(trace: Path) -> tuple[RecordingStage, CellStatics]:
    """A recording, cached for the next run on it."""
    stage = RecordingStage(open_recording(trace))
    return stage, CellStatics(stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaResults:
    """All runs played, by cell, policy and seed; policies that need what a recording or a cost lacks are left out."""

    played: tuple[Played, ...]
    left_out: tuple[LeftOut, ...]
    failed: tuple[str, ...]  # runs that ended in an error not due to input, a line each
    missing: Mapping[str, str]
    num_kept: int
    is_whole: bool

    def gaps(self) -> Iterator[str]:
        """What a leaderboard lacks apart from recordings: failed runs, and cells without the runs to compare with."""
        yield from self.failed
        for one in self.left_out:
            if one.run.policy == BEST_STATIC:
                where = f"cell {one.run.cell} is left out at seed {one.run.seed}"
                yield f"{where}, which has no best static chain: {one.why}"

    def to_json(self) -> dict[str, Any]:
        """Every run."""
        played = [asdict(one) | {"cell": str(one.cell)} for one in self.played]
        left_out = [
            {"cell": str(one.run.cell), "policy": one.run.policy, "seed": one.run.seed, "why": one.why}
            for one in self.left_out
        ]
        return {"played": played, "left_out": left_out, "failed": list(self.failed)}


def run_arena(
    cells: Sequence[ArenaCell],
    policies: Sequence[PolicySpec],
    *,
    work: Path,
    seeds: int = 2,
    jobs: int = 1,
    make: bool = False,
    oracles: bool = False,
    tuning: Sequence[str] = (),
) -> ArenaResults:
    """Play runs that are not in the store, and return all requested ones.

    An interrupt ends it; earlier runs are kept in the store. A second one raises KeyboardInterrupt.

    Args:
        cells: at least one.
        policies: built again for every run; the target alone and the best static chain of each cell are played too.
        work: folder of recordings and results.
        seeds: of each cell, >= 1; 0 is the recorded order of requests.
        jobs: processes, >= 1.
        make: whether missing recordings that take minutes are made.
        oracles: whether oracles are played as well, in the cells of `regret`.
        tuning: recordings to which policies may be fitted first; unavailable ones are left out.

    Raises:
        ArgumentError: no recording of the cells is available.
        PolicySpecError: a named policy can be built for none of them.
        TraceFormatError: a recording breaks its format.
    """
    shelf = RecordingShelf(work=work)
    with held_interrupts() as interrupts:
        traces, missing = _recordings(shelf, [cell.recording for cell in cells], interrupts, make=make)
        if not traces and missing:
            told = "; ".join(f"{name}: {why}" for name, why in missing.items())
            raise ArgumentError(f"`cells` must have a recording that can be had, got {told}")
        if any(map(needs_head, policies)):
            policies = with_heads(policies, _recordings(shelf, tuning, interrupts, make=make)[0], work)
        check_buildable(policies, traces.values())
        runs = list(_runs(cells, policies, traces, seeds, oracles=oracles))
    for name, why in missing.items():
        tell(f"recording {name} is left out: {why}")
    store = CellStore(work)
    finished, _ = store.keys()
    tell(f"{len(runs):,} runs, of which {sum(key_of(run.asked) in finished for run in runs):,} were played before")
    # All runs of a cell in one process, which searches for its best static chain once.
    tasks = [list(group) for _, group in groupby(runs, key=lambda run: run.cell)]
    with kept_processes():
        done = play_cells([] if interrupts.heard() else tasks, work, jobs=jobs, again=True, unit="runs")
    found = [(run, store.read(key_of(run.asked))) for run in runs]
    outcomes = [run.outcome(kept.figures) for run, kept in found if kept is not None and kept.figures is not None]
    failed = tuple(f"failed: {run}: {why}" for run, why in (*done.failed, *done.lost))
    looked_for = {*traces, *missing}  # not all of them after an interrupt
    return ArenaResults(
        played=tuple(one for one in outcomes if isinstance(one, Played)),
        left_out=tuple(one for one in outcomes if isinstance(one, LeftOut)),
        failed=failed,
        missing=missing,
        num_kept=done.kept,
        is_whole=len(outcomes) + len(failed) == len(runs) and all(cell.recording in looked_for for cell in cells),
    )


def _recordings(
    shelf: RecordingShelf, names: Iterable[str], interrupts: Interrupts, *, make: bool
) -> tuple[dict[str, Path], dict[str, str]]:
    """(folders of recordings, why others are missing)."""
    found: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(names):
        if interrupts.heard():
            break
        try:
            if name not in shelf.entries:
                raise RecordingUnavailableError("nothing makes it")
            if not (make or shelf.is_at_hand(name)):
                raise RecordingUnavailableError("it is not made yet; --make does, in minutes")
            found[name] = shelf.recording(name)
        except RecordingUnavailableError as error:
            missing[name] = str(error)
    return found, missing


def _runs(
    cells: Iterable[ArenaCell],
    policies: Sequence[PolicySpec],
    traces: Mapping[str, Path],
    seeds: int,
    *,
    oracles: bool,
) -> Iterator[ArenaRun]:
    """By cell the best static chain first, since all others are compared with it, then the target alone."""
    specs = {spec.label: spec for spec in (*map(PolicySpec.parse, (TARGET_ALONE, *ORACLES)), *policies)}
    labels = dict.fromkeys((BEST_STATIC, *(() if TARGET_ALONE in map(_label, policies) else (TARGET_ALONE,))))
    labels |= dict.fromkeys(map(_label, policies))
    heads = {name: str(spec.options[HEAD]) for name, spec in specs.items() if HEAD in spec.options}
    paths = {name: str(path) for name, path in traces.items()}
    known = inputs_of(
        (*specs, *heads.values(), *paths.values()), {name: one.policy_class for name, one in specs.items()}
    )
    code = known[CODE_OF] + code_hash([Path(__file__).parents[1]])
    for cell in cells:
        if cell.recording not in traces:
            continue
        asked = [(name, seed) for name in labels for seed in range(seeds)]
        for name, seed in [*asked, *((one, 0) for one in ORACLES if oracles and oracle_cells([cell]))]:
            files = {"policy": name, "head": heads.get(name, ""), "recording": paths[cell.recording]}
            yield ArenaRun(
                trace=traces[cell.recording],
                cell=cell,
                policy=name,
                seed=seed,
                made_of={"code": code, **{of: known[text] for of, text in files.items() if text in known}},
                head=heads.get(name),
            )


def _label(spec: PolicySpec) -> str:
    return spec.label
