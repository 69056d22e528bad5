"""Drives the loop offline: a list of requests, so many at a time, on the clock of this machine or by a price list."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from ..decoding.loop import Loop
from ..decoding.results import Results
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

    def run(self, sessions: Sequence[Session], batch: int) -> Iterator[int]:
        """Answer every request; yields, operation by operation, how many have ended."""
        waiting = iter(sessions)
        loop, clock = self._loop, self._clock
        loop.load.num_waiting = len(sessions)
        self._admit(islice(waiting, batch), clock.now_s())
        while True:
            op = loop.next_op(clock.now_s())
            if loop.finished:  # a Commit ends requests without an operation
                yield self._refill(waiting)
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
            yield self._refill(waiting)

    def _refill(self, waiting: Iterator[Session]) -> int:
        """Pass on what was committed, and admit a request for each that ended; returns how many did."""
        if self._on_commit is not None:
            self._tell()
        ended = self._take_ended()
        if ended:
            self._admit(islice(waiting, ended), self._clock.now_s())
        return ended

    def give_up(self, reason: str) -> None:
        """Note every request that has not ended as failed for `reason`."""
        self._take_ended()
        for request_id in self._running:
            self._ledger.note_failed(request_id, reason, self._clock.now_s())

    def _admit(self, sessions: Iterable[Session], now_s: float) -> None:
        for session in sessions:
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
        for session in loop.finished:
            del self._running[session.request_id]
        for session, error in loop.failed:
            del self._running[session.request_id]
            self.failed[session.request_id] = error
        ended = len(loop.finished) + len(loop.failed)
        loop.finished.clear()
        loop.failed.clear()
        return ended
