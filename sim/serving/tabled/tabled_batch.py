"""Who waits, who runs and who takes part in the next operation: as `engine.scheduler`, for requests without tokens."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..engine.replica_memory import ReplicaMemory
from ..engine.replica_spec import ServedFrom
from ..engine.served_session import NEVER
from ..limits import EngineLimits
from .request_queue import RequestQueue, RequestsOp
from .tabled_request import TabledRequest


class TargetStep(NamedTuple):
    """One step of the target.

    Attributes:
        rows: verifications.
        ending: prefills that end, with their tokens.
        chunks: prefills that go on afterwards, with their tokens.
    """

    rows: list[TabledRequest]
    ending: list[tuple[TabledRequest, int]]
    chunks: list[tuple[TabledRequest, int]]


class TabledBatch:
    """The queues of a replica, and its scheduler.

    Args:
        limits: of the replica.
        queue: whose requests these are.
        memory: of the replica.
        shared: what the replica shares with others.

    Attributes:
        waiting: in the order in which they are admitted.
        running: by the order of their admission.
        prefilling: those of them whose text the target has not read to its end, in the same order.
        waiting_tokens: of the texts of those that wait.
        late: whose verification did not fit into the step before.
        was_short: whether somebody was put back since the latest step of the target.
    """

    def __init__(self, limits: EngineLimits, queue: RequestQueue, memory: ReplicaMemory, shared: ServedFrom) -> None:
        self.waiting: deque[TabledRequest] = deque()
        self.running: dict[int, TabledRequest] = {}
        self.prefilling: dict[TabledRequest, None] = {}
        self.waiting_tokens = 0
        self.late: list[TabledRequest] = []
        self.was_short = False
        self._limits = limits
        self._queue = queue
        self._memory = memory
        self._shared = shared
        self._target = shared.pool.target_level
        self._admissions = 0

    @property
    def queued_tokens(self) -> int:
        """Tokens of texts that the target has still to read."""
        return self.waiting_tokens + sum(request.prefill_left for request in self.prefilling)

    def arrived(self, request: TabledRequest) -> None:
        """A request waits, after all others."""
        self.waiting.append(request)
        self.waiting_tokens += request.num_text

    def below(self, op: RequestsOp, now_ps: int) -> RequestsOp:
        """Hold blocks for an operation of a member below the target, and the target's; who still runs is left."""
        level = op.level
        for request in sorted(op.requests, key=_order):
            if request.order == NEVER:
                continue
            step = request.op
            wanted = request.num_text + step.pending + step.asked + 1
            if self._hold(request, level, wanted, now_ps):
                self._hold(request, self._target, wanted, now_ps)
        if not self.was_short:
            return op
        return op._replace(requests=[request for request in op.requests if request.order != NEVER])

    def step(self, rows: Sequence[TabledRequest], now_ps: int) -> TargetStep:
        """Fill a step of the target: `rows` and those left over from the step before, chunks, new requests."""
        rows = [request for request in (*self.late, *rows) if request.order != NEVER]
        left = budget = self._limits.token_budget
        late: set[int] = set()
        for request in sorted(rows, key=_order):
            if request.order == NEVER:
                continue
            text = request.num_text
            pending = request.op.pending
            new_tokens = text + pending - min(request.cached[-1], text - 1)
            if new_tokens > left < budget:
                late.add(request.serial)
            elif self._hold(request, self._target, text + pending + 1, now_ps):
                left -= new_tokens
        self.late = [request for request in rows if request.serial in late and request.order != NEVER]
        taken = [request for request in rows if request.serial not in late and request.order != NEVER]
        chunks = self._chunks(left, now_ps)
        left -= sum(tokens for _, tokens in chunks)
        if not self.was_short:
            chunks += self.admit(left, now_ps)
        self.was_short = False
        return self.laid_out([request for request in taken if request.order != NEVER], chunks)

    def ended(self, request: TabledRequest) -> None:
        """A request is done, and releases its blocks."""
        del self.running[request.order]
        request.order = NEVER
        self._memory.close(request)

    def admit(self, left: int, now_ps: int) -> list[tuple[TabledRequest, int]]:
        """The first chunks of requests that waited, with their tokens."""
        waiting, running = self.waiting, self.running
        chunks = []
        while waiting and left > 0 and len(running) < self._limits.max_num_seqs:
            request = waiting[0]
            if not request.recorded_id:
                self._look_at(request)
            tokens = self._memory.admit(request, left)
            if not tokens:
                break
            waiting.popleft()
            self.waiting_tokens -= request.num_text
            request.order = self._admissions
            self._admissions += 1
            running[request.order] = request
            self.prefilling[request] = None
            if not request.scheduled:
                request.scheduled = True
                self._shared.recorder.scheduled(request.serial, now_ps, request.cached)
            chunks.append((request, tokens))
            left -= tokens
        return chunks

    def _look_at(self, request: TabledRequest) -> None:
        """A request is looked at for the first time: what it replays."""
        arrival, shared = request.arrival, self._shared
        recorded_id = shared.drawn.of(arrival.request_id, arrival.tag)
        request.replays(recorded_id, shared.lengths.of(recorded_id), shared.lengths.most_of(recorded_id))

    def _chunks(self, left: int, now_ps: int) -> list[tuple[TabledRequest, int]]:
        """The next chunks of prefills that have begun, with their tokens."""
        chunks = []
        for request in list(self.prefilling):
            tokens = min(request.prefill_left, left)
            upto = request.cached[-1] + tokens
            if tokens > 0 and self._hold(request, self._target, upto + (upto == request.num_text), now_ps):
                chunks.append((request, tokens))
                left -= tokens
        return chunks

    def laid_out(self, rows: list[TabledRequest], chunks: Sequence[tuple[TabledRequest, int]]) -> TargetStep:
        """Tell chunks that end a prefill from others."""
        step = TargetStep(rows, [], [])
        for request, tokens in chunks:
            (step.ending if tokens == request.prefill_left else step.chunks).append((request, tokens))
        return step

    def _hold(self, request: TabledRequest, level: int, num_tokens: int, now_ps: int) -> bool:
        """Let a request hold blocks, if need be those of later ones; False: it was the latest, and is put back."""
        if num_tokens <= request.room_held[level]:
            return True
        while not self._memory.reserve(request, level, num_tokens):
            latest = self.put_back(now_ps)
            if latest is request:
                return False
        return True

    def put_back(self, now_ps: int) -> TabledRequest:
        """The latest that was admitted waits again, before all others."""
        _, latest = self.running.popitem()
        self.prefilling.pop(latest, None)
        self.waiting_tokens += latest.num_text
        self.waiting.appendleft(latest)
        self._queue.withdraw(latest)
        self._memory.put_back(latest)
        latest.put_back()
        self._shared.recorder.preempted(latest.serial, now_ps)
        self.was_short = True
        return latest


def _order(request: TabledRequest) -> int:
    return request.order
