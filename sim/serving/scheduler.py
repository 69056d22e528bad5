"""The requests of a replica's next operation, within token budget, batch size and blocks.

The order is vLLM's: running requests come first, those admitted earlier before others; then waiting ones, in their
order. Where blocks are short, the latest admitted request is preempted, and computed again when it returns. With
`Preemption.fewest_tokens` running requests come by the length of their answers, and the shortest is preempted.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...decoding.results import made
from ...runs.recorder import ServingRecorder
from .asked import AskedPolicy
from .limits import Admission, EngineLimits, Preemption
from .replica_memory import ReplicaMemory
from .requests import NEVER, AdmissionEstimate, Batch, ServedRequest, Waiting, Written, retracted_last
from .world import EngineWorld, Fed


class TargetStep(NamedTuple):
    """One step of the target."""

    rows: list[ServedRequest]  # verifications and plain decoding
    ending: Sequence[ServedRequest]  # prefills that end, each with its remaining tokens
    chunks: Sequence[ServedRequest]  # unfinished prefills, each with its chunk
    fed: Fed  # total tokens fed and held, if known


class Scheduler:
    """Mutates the batch, the memory, and the requests of the policy; time is an argument.

    Args:
        limits: of the replica.
        asked: the policy of these requests.
        target: level of the target.
        memory: of the replica.
        recorder: of admissions and preemptions.
        open_request: makes the served request of a waiting one.
        world: opens admitted requests, and preempts.

    Attributes:
        batch: waiting and running requests.
        late: requests whose verification did not fit into the step before.
        has_moved: whether running requests, or their blocks, may have changed since it was last reset.
        num_filled: steps of the target into which requests might have been admitted.
    """

    def __init__(
        self,
        *,
        limits: EngineLimits,
        asked: AskedPolicy,
        target: int,
        memory: ReplicaMemory,
        recorder: ServingRecorder,
        open_request: Callable[[Waiting], ServedRequest],
        world: EngineWorld,
    ) -> None:
        self.batch = Batch()
        self.late: list[ServedRequest] = []
        self.has_moved = False
        self.num_filled = 0
        self._limits = limits
        self._asked = asked
        self._memory = memory
        self._recorder = recorder
        self._open_request = open_request
        self._world = world
        self._target = target
        self._retracts = limits.preemption == Preemption.fewest_tokens
        self._rank: Callable[[ServedRequest], int | tuple[int, int, int]] = retracted_last if self._retracts else _order
        self._estimate = AdmissionEstimate() if limits.admission == Admission.estimate else None
        self._was_short = False
        self._num_preempted = 0

    @property
    def only_decodes(self) -> bool:
        """Whether all requests decode next: none waits, is in prefill or was left over."""
        batch = self.batch
        return not (batch.waiting or batch.prefilling or self.late or self._estimate)

    def hold_below(
        self, level: int, rows: list[ServedRequest], short: list[ServedRequest], now_ps: int
    ) -> list[ServedRequest]:
        """Hold blocks for an operation of a member below the target.

        The target's are also held, so that drafts can be verified. `short` are the requests that lack some.

        Returns:
            The requests that still run.
        """
        num_preempted, self.has_moved = self._num_preempted, True
        for request in self._in_order(short):
            wanted = request.num_text + len(request.tokens) + request.asked + 1
            if request.order != NEVER and self._hold(request, level, wanted, now_ps):
                self._hold(request, self._target, wanted, now_ps)
        if self._num_preempted == num_preempted:
            return rows
        return [request for request in rows if request.order != NEVER]

    def step(self, rows: list[ServedRequest], now_ps: int) -> TargetStep:
        """Fill a step of the target: `rows` and those left over from the step before, chunks, new requests."""
        batch, target, budget = self.batch, self._target, self._limits.token_budget
        if self.late:
            rows, self.late = [request for request in self.late if request.order != NEVER] + rows, []
        new_tokens = held_tokens = 0
        short: list[ServedRequest] = []
        for request in rows:
            text, held = request.num_text, request.cached[target]
            context = text + len(request.tokens)
            if held >= text:
                held = text - 1
            new_tokens += context - held
            held_tokens += held
            if context >= request.room_held[target]:
                short.append(request)
        num_preempted = self._num_preempted
        if new_tokens <= budget and (not short or self._hold_all(short)):
            if rows and not (batch.waiting or batch.prefilling or self._estimate):
                self._was_short = False
                return made(TargetStep, (rows, (), (), (new_tokens, held_tokens)))
            left, all_run = budget - new_tokens, True
        else:
            rows, left, all_run = self._held(rows, now_ps)
        self.has_moved = True
        chunks = self.filled(left, now_ps, decoded=bool(rows))
        fed: Fed = (new_tokens, held_tokens) if all_run else None
        if not all_run or self._num_preempted != num_preempted:  # a preempted request may be in prefill again
            rows, fed = [request for request in rows if request.order != NEVER and not request.chunk], None
        for request in chunks:
            new_tokens += request.chunk
            held_tokens += request.cached[target]
        ending = [request for request in chunks if request.chunk == request.prefill_left]
        unfinished = [request for request in chunks if request.chunk != request.prefill_left]
        return TargetStep(rows, ending, unfinished, fed and (new_tokens, held_tokens))

    def _hold_all(self, short: list[ServedRequest]) -> bool:
        """Hold blocks for a step of the target, if that needs no preemption; False: it does."""
        self.has_moved = True
        for request in self._in_order(short):
            if not self._memory.reserve(request, self._target, request.num_text + len(request.tokens) + 1):
                return False
        return True

    def _held(self, rows: list[ServedRequest], now_ps: int) -> tuple[list[ServedRequest], int, bool]:
        """Hold blocks for a step of the target that is wider than the budget, or for which memory is short.

        Returns:
            The rows of the step, tokens of the budget that are left, and whether these are all rows.
        """
        num_preempted, target, budget = self._num_preempted, self._target, self._limits.token_budget
        left, all_run = budget, True
        late: set[int] = set()
        for request in self._in_order(rows):
            if request.order == NEVER:
                all_run = False
                continue
            text, pending = request.num_text, len(request.tokens)
            held = request.cached[target]
            new_tokens = text + pending - (held if held < text else text - 1)
            if new_tokens > left < budget:
                late.add(request.serial)
            elif self._hold(request, target, text + pending + 1, now_ps):
                left -= new_tokens
        if late or self._num_preempted != num_preempted:
            self.late = [request for request in rows if request.serial in late and request.order != NEVER]
            return [request for request in rows if request.serial not in late], left, False
        return rows, left, all_run

    def filled(self, left: int, now_ps: int, *, decoded: bool) -> list[ServedRequest]:
        """Prefills in a step of the target with `left` tokens of its budget; `decoded`: whether a request decodes."""
        chunks = self._chunks(left, now_ps) if self.batch.prefilling else []
        left -= sum([request.chunk for request in chunks])
        # Where memory was short, running requests come first; a Commit may have ended all of them since.
        if self.batch.waiting and not (self._was_short and self.batch.running):
            chunks += self._admitted(left, now_ps, decoded=decoded)
        self.num_filled += 1
        if self._estimate is not None:
            running = map(_written, self.batch.running)
            self._estimate.stepped(running, decoded=decoded, was_short=self._was_short)
        self._was_short = False
        return chunks

    def _chunks(self, left: int, now_ps: int) -> list[ServedRequest]:
        """Begun prefills in the step, each with its chunk."""
        chunks = []
        for request in list(self.batch.prefilling):
            tokens = min(request.prefill_left, left)
            upto = request.cached[self._target] + tokens
            if tokens > 0 and self._hold(request, self._target, upto + (upto == request.num_text), now_ps):
                request.chunk = tokens
                chunks.append(request)
                left -= tokens
        return chunks

    def _admitted(self, left: int, now_ps: int, *, decoded: bool) -> list[ServedRequest]:
        """Admitted requests, each with its first chunk."""
        batch = self.batch
        chunks = []
        while batch.waiting and left > 0 and len(batch.running) < self._limits.max_num_seqs:
            first = batch.waiting[0]
            if decoded and first.from_step > self.num_filled:
                break
            request = first.request
            if request is None:
                request = first.request = self._open_request(first)
            if not self._has_room(request):
                break
            tokens = self._memory.admit(request, left)
            if not tokens:
                break
            if not request.scheduled:
                self._world.open(request)
            self._asked.enter(request)
            batch.admitted(request)
            self._asked.load.num_waiting -= 1
            if not request.scheduled:
                request.scheduled = True
                self._recorder.scheduled(request.serial, now_ps, request.cached)
            request.chunk = tokens
            chunks.append(request)
            left -= tokens
        return chunks

    def _has_room(self, request: ServedRequest) -> bool:
        """Whether enough is free to admit a request, in addition to the check of `ReplicaMemory.admit`.

        One that would run alone lacks only blocks of texts that are being sent. Unless a first chunk is enough, it
        waits for them: else it would read its text again and again without ever writing a token.
        """
        running, reading, estimate = self.batch.running, self.batch.prefilling, self._estimate
        if not running:
            more = 0 if self._limits.admission == Admission.first_chunk else 1
        elif estimate is None:
            more = 0
        else:
            decoding = [_written(one) for one in running if one not in reading]
            more = estimate.tokens_for(_written(request), decoding, map(_written, reading))
        return not more or self._memory.has_room(request, request.num_text + more)

    def _hold(self, request: ServedRequest, level: int, num_tokens: int, now_ps: int) -> bool:
        """Hold blocks for a request, if need be by preempting others; False: the request itself is preempted."""
        if num_tokens <= request.room_held[level]:
            return True
        while not self._memory.reserve(request, level, num_tokens):
            self._num_preempted += 1
            leaving = self.batch.retract(request) if self._retracts else self.batch.preempt()
            self._asked.withdraw(leaving)
            self._memory.preempt(leaving.serial)
            self._world.preempt(leaving)
            leaving.forget_caches()
            self._asked.load.num_waiting += 1
            self._recorder.preempted(leaving.serial, now_ps)
            self._was_short = True
            if leaving is request:
                return False
        return True

    def _in_order(self, rows: list[ServedRequest]) -> list[ServedRequest]:
        """In the order in which blocks are held."""
        return sorted(rows, key=self._rank) if len(rows) > 1 else rows


def _order(request: ServedRequest) -> int:
    return request.order


def _written(request: ServedRequest) -> Written:
    return Written(request.num_answer, request.arrival.output_tokens)
