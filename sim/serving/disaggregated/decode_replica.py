"""A replica that decodes what others have prefilled.

A request that is handed over waits for blocks of its whole text and for a place in the batch, then for its keys and
values; it joins the batch at the start of the first cycle after that. One that was put back is prefilled here.
"""

from collections import deque
from collections.abc import Callable

from ....decoding.world import Op
from ....runs.serving.recorder import ServingRecorder
from ..engine.batch import Batch
from ..engine.replica import Replica
from ..engine.replica_books import Going, Reached, ReplicaBooks
from ..engine.replica_memory import ReplicaMemory
from ..engine.replica_spec import ReplicaSpec, ServedFrom
from ..engine.served_session import ServedSession
from .handovers import Handover, Handovers


class _Books(ReplicaBooks):
    """As `ReplicaBooks`; some requests that wait stand in no queue of the batch."""

    def __init__(
        self,
        index: int,
        recorder: ServingRecorder,
        batch: Batch,
        memory: ReplicaMemory,
        reached: Reached,
        num_waiting: Callable[[], int],
    ) -> None:
        super().__init__(index, recorder, batch, memory, reached)
        self._num_waiting = num_waiting

    def note_state(self, at_ps: int) -> None:
        """See `ReplicaBooks`."""
        running, used_blocks = len(self._batch.running), self._memory.used_blocks
        self._recorder.state(self._index, at_ps, running, self._num_waiting(), used_blocks)


class DecodeReplica(Replica):
    """As `Replica`; see `Handovers`, which calls `expect` and `received`.

    Args:
        index: among the replicas of the run.
        spec: what it is.
        shared: what it shares with the others.
        handovers: told when keys and values may be sent.
    """

    def __init__(self, index: int, spec: ReplicaSpec, shared: ServedFrom, handovers: Handovers) -> None:
        super().__init__(index, spec, shared, may_lag=False)
        memory, reached = self._memory, shared.reached
        self._books = _Books(index, shared.recorder, self._batch, memory, reached, lambda: self.num_waiting)
        self._handovers = handovers
        self._most_running = spec.limits.max_num_seqs
        self._expected: deque[Handover] = deque()
        self._received: deque[ServedSession] = deque()
        self._num_coming = 0  # who holds blocks and does not run yet
        self._in_cycle = False

    @property
    def num_waiting(self) -> int:
        """Requests that wait: put back, for blocks, for keys and values, or for the next cycle."""
        return len(self._batch.waiting) + len(self._expected) + self._num_coming

    def expect(self, handover: Handover, at_ps: int) -> None:
        """See `Decoder`."""
        self._expected.append(handover)
        self._sessions[handover.session.request_id] = handover.session
        self._loop.load.num_waiting += 1
        self._books.note_state(at_ps)

    def received(self, handover: Handover, at_ps: int) -> None:
        """See `Decoder`."""
        self._received.append(handover.session)

    def plan(self, now_ps: int, until_ps: int = 0) -> int | None:
        """See `Replica`."""
        while True:
            if not self._in_cycle:
                self._join()
            end_ps = super().plan(now_ps)
            if end_ps is not None:
                return end_ps
            if not self._received:
                self._books.note_state(now_ps)  # of blocks that are held for who comes
                return None

    def _join(self) -> None:
        """Requests whose keys and values are there run."""
        while self._received and len(self._batch.running) < self._most_running:
            session = self._received.popleft()
            self._num_coming -= 1
            self._batch.joined(session)
            self._memory.commit(session)
            self._loop.admit(session)
            self._loop.load.num_waiting -= 1

    def _below(self, op: Op, now_ps: int, start_ps: int) -> Going | None:
        self._in_cycle = True
        return super()._below(op, now_ps, start_ps)

    def _step(self, op: Op | None, now_ps: int, start_ps: int) -> Going | None:
        self._in_cycle = False
        going = super()._step(op, now_ps, start_ps)
        batch, expected = self._batch, self._expected
        # Who was put back comes first: while one waits, nobody gets blocks that it lacks.
        while expected and not batch.waiting and len(batch.running) + self._num_coming < self._most_running:
            num_tokens = self._memory.receive(expected[0].session)
            if num_tokens is None:
                break
            self._num_coming += 1
            self._handovers.begin(expected.popleft(), num_tokens, now_ps)
        return going
