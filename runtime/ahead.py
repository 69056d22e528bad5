"""Runs the parts of an `Overlap` with real models; each member has a lane of its own.

Lanes run in threads or in turns, whichever was measured to be faster; the answers are the same. All parts read the text
as it was before. After all verdicts, caches are rolled back to the tokens that are kept (`decoding.overlap.settle`); a
deferred request keeps none of its parts. Where threads find no memory, all parts run again in turns. Letters: B
requests, P parts.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from statistics import median_high
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.errors import ArgumentError
from ..decoding.legal_steps import Policy
from ..decoding.overlap import settle, spans_of
from ..decoding.overlap_run import part_of, together
from ..decoding.results import Deferred, Drafted, Failed, Judged, Parted, PartRun
from ..decoding.session import Session
from ..decoding.world import OverlapItem
from ..policies.about import may_work_ahead
from .clock import Clock
from .draft import DraftProcessor, ForeignDrafter
from .executor import Executor, Phases, RollbackProcessor
from .forward_kinds import AheadKind
from .pools.members import LoadedMember
from .state import CrowdedError
from .verify import VerifyProcessor

# Operations that `auto` tries each way, after one for one-time costs: enough to outlast a disturbance.
TRIED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadPace:
    """The run's operations in which several members worked: how they ran, and why."""

    asked: AheadKind
    used: str  # how most of them ran, "" if there was none
    threads_s: float | None  # median seconds of the operations that were tried, None if none was tried
    turns_s: float | None  # the same in turns
    why: str  # why threads were not tried; empty if they were, or were not requested


def check_has_use(asked: AheadKind, policies: Mapping[str, Policy]) -> None:
    """Raise ArgumentError for `threads` or `turns` if no policy, by name, works ahead."""
    if asked != "auto" and not any(map(may_work_ahead, policies.values())):
        names = " nor ".join(policies)
        raise ArgumentError(f"`overlap` is for policies that work ahead, such as pearl, got {asked!r} for {names}")


def why_no_threads(sampling: str, *, whole: bool, limited: bool, compiled: bool) -> str:
    """Why members cannot work in threads, empty if they can.

    `whole`: all models are in this process; `limited`: the memory of caches has a limit; `compiled`: a member's forward
    is compiled.
    """
    if sampling == "rejection":
        return "rejection sampling draws from one stream of chance per request, in order"
    if not whole:
        return "several processes have to run the same forwards in the same order"
    if limited:
        return "members that share limited memory take it from one another"
    return "compiled forwards run one at a time" if compiled else ""


class Pace:
    """Chooses threads or turns, operation by operation; mutated by `note`.

    Args:
        asked: `auto` tries both ways in turn, then uses the faster one.
        why_not: why threads cannot be used, empty if they can.

    Raises:
        ArgumentError: `threads` where they cannot be used.
    """

    def __init__(self, asked: AheadKind, why_not: str) -> None:
        if asked == "threads" and why_not:
            raise ArgumentError(f"`overlap` cannot be threads: {why_not}")
        self._asked = asked
        self._why_not = why_not
        self._seconds: Mapping[bool, list[float]] = {True: [], False: []}
        self._num_ops = {True: 0, False: 0}

    @property
    def threads_next(self) -> bool:
        """Whether the next operation runs in threads."""
        if self._asked == "turns" or self._why_not:
            return False
        if self._asked == "threads":
            return True
        in_threads, in_turns = self._num_ops[True], self._num_ops[False]
        if min(in_threads, in_turns) <= TRIED:
            return in_threads < in_turns
        return median_high(self._seconds[True]) < median_high(self._seconds[False])

    def note(self, seconds: float, *, threads: bool) -> None:
        """Note an operation's seconds; the first one of either kind has one-time costs and is left out."""
        self._num_ops[threads] += 1
        if 1 < self._num_ops[threads] <= TRIED + 1:
            self._seconds[threads].append(seconds)

    def told(self) -> AheadPace:
        """The pace of the run so far."""
        ran = max(self._num_ops, key=self._num_ops.__getitem__)
        used = "" if not self._num_ops[ran] else "threads" if ran else "turns"
        return AheadPace(
            asked=self._asked,
            used=used,
            threads_s=median_high(self._seconds[True]) if self._seconds[True] else None,
            turns_s=median_high(self._seconds[False]) if self._seconds[False] else None,
            why="" if self._asked == "turns" else self._why_not,
        )


Answer = Drafted | Judged | Failed | Deferred
Maker = Callable[[], tuple[list[Answer], PartRun]]


class Lane(NamedTuple):
    """One member, with all that its forwards mutate except its caches."""

    executor: Executor
    draft: DraftProcessor
    verify: VerifyProcessor


class Lanes:
    """Mutates caches, request states and its notes of seconds; no session.

    `executor` runs members one at a time, and each lane has a twin of it. `foreign` holds by level the members with a
    tokenizer of their own. The attribute `parts` `[P]` has how the parts of the latest operation ran.
    """

    def __init__(
        self,
        members: Sequence[LoadedMember],
        executor: Executor,
        foreign: Mapping[int, ForeignDrafter],
        clock: Clock,
        pace: Pace,
    ) -> None:
        self.parts: list[PartRun] = []
        self.pace = pace
        self._members = members
        self._executor = executor
        self._manager = executor.manager
        self._foreign = foreign
        self._clock = clock
        self._lanes: dict[int, Lane] = {}
        self._threads: ThreadPoolExecutor | None = None

    def run(self, levels: tuple[int, ...], items: Sequence[OverlapItem]) -> list[Parted | Failed | Deferred]:
        """`[B]` the result of each request's parts, or why there is none."""
        manager, start_s = self._manager, self._clock.now_s()
        spans = [spans_of(session, step, levels) for session, step in items]
        views = [manager.states[session.request_id].views for session, _ in items]
        # The logits of each pending token's endorser at its context.
        endorsed = [[seen[place].judge for place in item[0].places] for item, seen in zip(items, views, strict=True)]
        num_evicted, threads = len(manager.evicted), self.pace.threads_next
        makers = [
            self._maker(level, number, items, [each[number][1] for each in spans], start_s)
            for number, level in enumerate(levels)
        ]
        ran = self._in_threads(makers) if threads else None
        if ran is None:
            for (session, _), judges in zip(items, endorsed, strict=True):
                self._undo(session, judges)
            ran = [make() for make in makers]
        self.pace.note(self._clock.now_s() - start_s, threads=threads)
        take_counts = self._executor.sharing.take_counts
        self.parts = [part._replace(prefixes=take_counts(level)) for level, (_, part) in zip(levels, ran, strict=True)]
        lost = self._lost(items, num_evicted)
        rows = [together(row) for row in zip(*[answers for answers, _ in ran], strict=True)]
        for index, ((session, _), row) in enumerate(zip(items, rows, strict=True)):
            if session.request_id in lost and not isinstance(row, Failed):
                rows[index] = Deferred("no memory for all members at once")
            if isinstance(settled := rows[index], Failed | Deferred):
                self._undo(session, endorsed[index])
            else:  # to what the session will say that they hold
                self._cut_back(session, settle(session, levels, spans[index], settled).cached)
        return rows

    def phases(self) -> Phases:
        """Seconds of all lanes so far by kind of work; those of concurrent threads are all added."""
        return sum((lane.executor.phases for lane in self._lanes.values()), start=Phases())

    def _maker(
        self, level: int, number: int, items: Sequence[OverlapItem], ends: Sequence[int], start_s: float
    ) -> Maker:
        """A function that runs one part; it reads the state of requests only when called."""
        lane = self._lane(level)

        def make() -> tuple[list[Answer], PartRun]:
            began_s = self._clock.now_s()
            _, drafts, verifies = part_of(number, items, ends)
            lane.executor.begin()
            ran = lane.draft.run(level, drafts) if drafts else lane.verify.run(level, verifies)
            answers: list[Answer] = list(ran)
            forwards = list(lane.executor.forwards_run())
            return answers, PartRun(began_s - start_s, forwards, self._clock.now_s() - began_s)

        return make

    def _in_threads(self, makers: Sequence[Maker]) -> list[tuple[list[Answer], PartRun]] | None:
        """Run the largest member's part here, the others in threads; waits for all. None where memory is short."""
        if self._threads is None:
            # A new thread does not inherit this one's number of torch threads.
            most, each = len(self._members) - 1, (torch.get_num_threads(),)
            self._threads = ThreadPoolExecutor(most, initializer=torch.set_num_threads, initargs=each)
        self._manager.beside = True
        coming = [self._threads.submit(make) for make in makers[1:]]
        try:
            try:
                first = makers[0]()
            finally:  # no thread may write to caches after this has ended
                wait(coming)
                self._manager.beside = False
            return [first, *[each.result() for each in coming]]
        except CrowdedError:
            return None

    def _lane(self, level: int) -> Lane:
        lane = self._lanes.get(level)
        if lane is None:
            executor = self._executor.twin()
            rollback = RollbackProcessor(self._manager, foreign=frozenset(self._foreign), beside=True)
            draft = DraftProcessor(self._members, executor, rollback, foreign=self._foreign)
            lane = self._lanes[level] = Lane(executor, draft, VerifyProcessor(self._members, executor, rollback))
        return lane

    def _lost(self, items: Sequence[OverlapItem], num_evicted: int) -> set[str]:
        """Requests of this operation that lost their caches to another member's part; not reported elsewhere."""
        own = {session.request_id for session, _ in items}
        evicted = self._manager.evicted
        lost = own & set(evicted[num_evicted:])
        evicted[num_evicted:] = [request_id for request_id in evicted[num_evicted:] if request_id not in lost]
        return lost

    def _undo(self, session: Session, endorsed: Sequence[Tensor | None]) -> None:
        """Endorsers and caches as before the operation."""
        views = self._manager.states[session.request_id].views
        for place, judge in zip(session.places, endorsed, strict=True):
            views[place].judge = judge
        self._cut_back(session, session.cached)

    def _cut_back(self, session: Session, kept: Sequence[int]) -> None:
        state = self._manager.states[session.request_id]
        for level in list(state.fed):
            if level not in self._foreign:
                self._manager.roll_back(state, level, kept[level])
