"""A run of the arena: what was played before is taken from the store, the rest is played, here or in processes."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from paceline.base.errors import ArgumentError, check_least, check_within
from paceline.base.terminal import Interrupts, Progress, held_interrupts, tell
from paceline.decoding.steps import UnavailableStepError
from paceline.policies.spec import PolicySpec
from paceline.traces.errors import TraceFormatError
from paceline.traces.forms import open_recording

from ..processes import executors
from . import versions
from .board import TARGET_ALONE, oracle_cells, oracles
from .cells import ArenaCell, check_buildable, given_to, needs_head, with_heads
from .play import RecordingStage, play
from .recordings import RecordingShelf, RecordingUnavailableError
from .statics import CellStatics
from .store import BEST_STATIC, ArenaStore, AskedRun, LeftOut, Outcome, Played


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A run that ended in an error which is nobody's input."""

    # as of `Played`
    cell: ArenaCell
    policy: str
    seed: int
    error: str  # in one line

    def __str__(self) -> str:
        return f"failed: {self.policy} in {self.cell}, seed {self.seed}: {self.error}"


Came: TypeAlias = Outcome | Failed


class Player:
    """Plays runs, and keeps the recording of the latest for the next. Final."""

    def __init__(self) -> None:
        self._trace: Path | None = None
        self._kept: tuple[RecordingStage, CellStatics] | None = None

    def outcome(self, run: AskedRun) -> Came:
        """What came of a run; nothing is raised, so that one run does not lose the others."""
        try:
            return self._play(run)
        except TraceFormatError as error:
            said = _line(error)
        except UnavailableStepError as error:
            why = f"not applicable: {_line(error.reason)}"
            return LeftOut(cell=run.cell, policy=run.policy, seed=run.seed, why=why)
        except ValueError as error:  # of a policy's own errors the loop makes a PolicyError
            return LeftOut(cell=run.cell, policy=run.policy, seed=run.seed, why=_line(error))
        except Exception as error:  # noqa: BLE001 - a policy may raise anything, and is told with its run
            said = f"{type(error).__name__}: {_line(error)}"
        return Failed(cell=run.cell, policy=run.policy, seed=run.seed, error=said)

    def _play(self, run: AskedRun) -> Played:
        stage, statics = self._on(run.trace)
        if run.policy == BEST_STATIC:
            return statics.best(run.cell, run.seed)
        return play(stage, run.cell, run.spec, run.seed)

    def _on(self, trace: Path) -> tuple[RecordingStage, CellStatics]:
        if self._kept is None or trace != self._trace:
            self._kept = None  # two are not to be held at once
            stage = RecordingStage(open_recording(trace))
            self._trace, self._kept = trace, (stage, CellStatics(stage))
        return self._kept


def _line(error: BaseException | str) -> str:
    return " ".join(str(error).split())


LOOK_S = 0.2  # between two looks for an interrupt


class LostWorkerError(RuntimeError):
    """A process ended by itself in the midst of its runs, as one that was killed for memory does."""


def played_here(groups: Iterable[Sequence[AskedRun]], interrupts: Interrupts) -> Iterator[tuple[AskedRun, Came]]:
    """Play groups of runs one after another in this process, up to an interrupt."""
    player = Player()
    for group in groups:
        for run in group:
            if interrupts.heard():
                return
            yield run, player.outcome(run)


def played_by(
    groups: Iterable[Sequence[AskedRun]], interrupts: Interrupts, *, jobs: int
) -> Iterator[tuple[AskedRun, Came]]:
    """Play groups of runs, each in one of the processes, up to an interrupt: runs in the midst are then lost.

    Groups that take long come first. Raises LostWorkerError where a process ended by itself.
    """
    waiting = deque(groups)
    coming: dict[
        Future[Came], tuple[AskedRun, ProcessPoolExecutor]
    ] = {}  # in the order in which each process plays them
    with executors(min(jobs, len(waiting))) as made:
        idle = list(made)
        while True:
            while idle and waiting:
                executor = idle.pop(0)
                coming |= {executor.submit(_outcome, run): (run, executor) for run in waiting.popleft()}
            if not coming or interrupts.heard():
                return
            done, _ = wait(coming, LOOK_S, FIRST_COMPLETED)
            for future in [future for future in coming if future in done]:
                run, executor = coming.pop(future)
                try:
                    yield run, future.result()
                except BrokenProcessPool:
                    raise LostWorkerError(
                        f"the process that played {run.policy} in {run.cell} ended by itself"
                    ) from None
                if all(other is not executor for _, other in coming.values()):
                    idle.append(executor)


@cache
def _player() -> Player:
    return Player()


def _outcome(run: AskedRun) -> Came:
    return _player().outcome(run)


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
    failed: tuple[Failed, ...]
    missing: Mapping[str, str]
    num_kept: int
    is_whole: bool

    def gaps(self) -> Iterator[str]:
        """What a leaderboard lacks besides recordings: runs that failed, and cells without what others stand beside."""
        yield from map(str, self.failed)
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
        LostWorkerError: a process ended by itself.
    """
    with held_interrupts() as interrupts:
        traces, missing = _recordings(asked, [cell.recording for cell in asked.cells], interrupts)
        if not traces and missing:
            told = "; ".join(f"{name}: {why}" for name, why in missing.items())
            raise ArgumentError(f"`cells` must have a recording that can be had, got {told}")
        asked = _fitted(asked, interrupts)
        check_buildable(asked.policies, traces.values())
        runs = list(_asked_runs(asked, traces))
        store = ArenaStore(asked.work)
        rest = [run for run in runs if store.found(run) is None]
        _tell(runs, rest, Counter(part for run in rest for part in store.changed(run)), missing)
        failed = _played(asked, store, rest, interrupts)
    outcomes = [outcome for run in runs if (outcome := store.found(run)) is not None]
    looked_for = {*traces, *missing}  # not all of them where an interrupt came meanwhile
    return ArenaResults(
        played=tuple(one for one in outcomes if isinstance(one, Played)),
        left_out=tuple(one for one in outcomes if isinstance(one, LeftOut)),
        failed=tuple(failed),
        missing=missing,
        num_kept=len(runs) - len(rest),
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


def _asked_runs(asked: ArenaAsked, traces: Mapping[str, Path]) -> Iterator[AskedRun]:
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
                yield AskedRun(
                    trace=traces[name],
                    cell=cell,
                    policy=label,
                    seed=seed,
                    made_of=made_of | {"policy": code[label]},
                    given=given.get(label, ()),
                )


def _played(asked: ArenaAsked, store: ArenaStore, rest: Sequence[AskedRun], interrupts: Interrupts) -> list[Failed]:
    """Play the runs and keep what comes of them; returns those that failed."""
    groups = _groups(rest, asked.jobs)
    come = played_here(groups, interrupts) if asked.jobs == 1 else played_by(groups, interrupts, jobs=asked.jobs)
    failed = []
    with Progress("arena", len(rest), unit="runs") as progress:
        for run, came in come:
            if isinstance(came, Failed):
                failed.append(came)
            else:
                store.add(run, came)
            progress.advance()
            progress.note(str(run.cell))
    return failed


def _groups(runs: Sequence[AskedRun], jobs: int) -> list[list[AskedRun]]:
    """Runs of one recording for one process, the largest group first; of cells where recordings are few."""
    by_recording = [list(group) for _, group in groupby(runs, key=lambda run: run.cell.recording)]
    if len(by_recording) < jobs:
        by_recording = [list(group) for _, group in groupby(runs, key=lambda run: run.cell)]
    return sorted(by_recording, key=len, reverse=True)


def _tell(
    runs: Sequence[AskedRun], rest: Sequence[AskedRun], changed: Mapping[str, int], missing: Mapping[str, str]
) -> None:
    for name, why in missing.items():
        tell(f"recording {name} is left out: {why}")
    tell(f"{len(runs):,} runs, of which {len(runs) - len(rest):,} were played before")
    for part, count in changed.items():
        tell(f"{count:,} runs are played anew: another {part} than before")
