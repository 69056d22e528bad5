"""Drives the loop offline: a list of requests, so many at a time, on the clock of this machine or by a price list."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ..decoding.loop import Loop
from ..decoding.results import Results
from ..decoding.rollouts.growth import Growth
from ..decoding.session import Session
from ..runs.ledger import RunLedger
from .timing.priced_seconds import PricedSeconds
from .world import TorchWorld

OnCommit = Callable[[Session, list[int]], None]
INTERRUPTED = "interrupted"


class Driver:
    """Admits requests as others end, and runs operations until none is left.

    Args:
        loop: decides.
        world: carries out.
        ledger: of the loop.
        on_commit: told of every request's newly committed tokens, in order.
        priced: tells the seconds instead of the clock; None measures.

    Attributes:
        failed: the errors of requests that failed, by id.
    """

    def __init__(
        self,
        loop: Loop,
        world: TorchWorld,
        ledger: RunLedger,
        *,
        on_commit: OnCommit | None = None,
        priced: PricedSeconds | None = None,
    ) -> None:
        self.failed: dict[str, Exception] = {}
        self._loop = loop
        self._world = world
        self._ledger = ledger
        self._clock = priced or world.clock
        self._priced = priced
        self._on_commit = on_commit
        self._told: dict[str, int] = {}
        self._running: dict[str, Session] = {}
        self._waiting: deque[Session] = deque()
        self._batch = 0
        self._growth: Growth | None = None

    def run(self, sessions: Sequence[Session], batch: int, growth: Growth | None = None) -> Iterator[int]:
        """Answer every request; yields, operation by operation, how many have ended.

        Args:
            sessions: in the order in which they are admitted.
            batch: requests running at a time, >= 1.
            growth: the paths that leave them; None for none. Those that may start come before what has not begun, as
                their text was the last to be read. Paths that cannot start fail, and count as ended.
        """
        loop, clock = self._loop, self._clock
        self._batch, self._growth = batch, growth
        for session in sessions:
            self._waiting.append(session)
            if growth is not None:
                self._waiting.extend(growth.ripe(session))
        loop.load.num_waiting = len(self._waiting)
        self._admit()
        while True:
            op = loop.next_op(clock.now_s())
            if loop.finished:  # a Commit ends requests without an operation
                yield self._refill()
            elif op is None:
                return
            if op is None:
                continue
            start_s = clock.now_s()
            results: Results = op.run(self._world)
            if self._priced is not None:
                results = self._priced.priced(op, results)
            loop.finish(op, results, start_s=start_s, now_s=clock.now_s())
            self._note_evicted()
            yield self._refill()

    def _refill(self) -> int:
        """Pass on what was committed, and admit requests for those that ended; returns how many did."""
        if self._on_commit is not None:
            self._tell()
        grown = self._growth is not None and self._branch(self._growth)
        ended = self._take_ended()
        if ended or grown:
            self._admit()
        return ended

    def _branch(self, growth: Growth) -> bool:
        """Let paths that may start wait for their turn, before all others; returns whether there are any."""
        ripe = [child for session in self._running.values() for child in growth.ripe(session)]
        self._waiting.extendleft(reversed(ripe))
        self._loop.load.num_waiting += len(ripe)
        return bool(ripe)

    def give_up(self, reason: str) -> None:
        """Note every request that has not ended as failed for `reason`."""
        self._take_ended()
        for request_id in self._running:
            self._ledger.note_failed(request_id, reason, self._clock.now_s())

    def raise_failure(self) -> None:
        """Raise the error of the first request that failed, if one did.

        It leaves the driver first. An error refers to the frames that it passes; if one of them referred back to it,
        that cycle would keep all of the run in memory until Python's collector finds it.
        """
        for request_id in self.failed:
            raise self.failed.pop(request_id).with_traceback(None)

    def _admit(self) -> None:
        """Let as many requests start as the batch has room for."""
        now_s = self._clock.now_s()
        while self._waiting and len(self._running) < self._batch:
            session = self._waiting.popleft()
            self._ledger.note_admitted(
                session.request_id, tag=session.tag, num_prompt=session.num_prompt, arrived_at_s=now_s, now_s=now_s
            )
            self._loop.load.num_waiting -= 1
            self._loop.admit(session)
            self._running[session.request_id] = session

    def _note_evicted(self) -> None:
        """Requests that lost their memory while others ran; the loop notes those that could not run themselves."""
        evicted = self._world.manager.evicted
        for request_id in evicted:
            self._ledger.note_preempted(request_id)
        evicted.clear()

    def _tell(self) -> None:
        """Pass on what was committed since the last time."""
        assert self._on_commit is not None
        for request_id, session in self._running.items():
            told = self._told.get(request_id, 0)
            if len(session.emitted) > told:
                self._told[request_id] = len(session.emitted)
                self._on_commit(session, session.emitted[told:])

    def _take_ended(self) -> int:
        loop = self._loop
        if not (loop.finished or loop.failed):
            return 0
        ended = len(loop.finished) + len(loop.failed)
        for session in loop.finished:
            del self._running[session.request_id]
            ended += self._note_lost(session, None)
        for session, error in loop.failed:
            del self._running[session.request_id]
            self.failed[session.request_id] = error
            ended += self._note_lost(session, error)
        loop.finished.clear()
        loop.failed.clear()
        return ended

    def _note_lost(self, session: Session, error: Exception | None) -> int:
        """Note the paths that cannot start since the one they leave has ended; returns how many there are."""
        if self._growth is None:
            return 0
        lost, now_s = self._growth.ended(session, error), self._clock.now_s()
        for fork, tag, num_prompt, reason in lost:
            request_id = fork.request_id
            self._ledger.note_admitted(request_id, tag=tag, num_prompt=num_prompt, arrived_at_s=now_s, now_s=now_s)
            self._ledger.note_failed(request_id, reason, now_s)
        return len(lost)
