"""A replica whose policy's rounds are fixed: as `engine.Replica`, from numbers alone."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ....traces.workloads.arrival import Arrival
from ..engine.replica_memory import ReplicaMemory
from ..engine.replica_spec import ReplicaSpec, ServedFrom
from ..engine.served_session import NEVER
from ..routers import ReplicaSignals
from ..routers.dispatcher import CachedTokens
from .catch_up import catch_up, within_budget
from .request_queue import RequestQueue, RequestsOp
from .tabled_batch import TabledBatch, TargetStep
from .tabled_charges import TabledCharges
from .tabled_request import TabledRequest


class _Going(NamedTuple):
    """What runs: an operation below the target, or a step of it."""

    op: RequestsOp | None
    step: TargetStep | None
    level: int
    forwards: int
    start_ps: int
    end_ps: int


class TabledReplica:
    """Driven as `engine.Replica` is.

    Args:
        index: among the replicas of the run.
        spec: what it is; `may_table.why_not` has nothing against it.
        shared: what it shares with the others.

    Attributes:
        end_ps: of what was planned.
        num_emitted, num_cycled: tokens that came out, and those after the first pass of a recorded answer.
        num_modelled: decisions that were modelled rather than replayed.
        may_lag: nobody else learns what it does.
    """

    may_lag = True

    def __init__(self, index: int, spec: ReplicaSpec, shared: ServedFrom) -> None:
        pool = shared.pool
        self._index = index
        self._shared = shared
        self._num_levels = len(pool.members)
        self._target = pool.target_level
        self._recorder = shared.recorder
        self._budget = spec.limits.token_budget
        self._memory = ReplicaMemory(pool, spec.limits, shared.unit_tokens)
        self._charges = TabledCharges(spec.cost, pool, shared.answers.num_free)
        rounds = shared.rounds.of(spec.policy, spec.policy_name, pool, shared.answers)
        self._queue = RequestQueue(rounds)
        self._batch = TabledBatch(spec.limits, self._queue, self._memory, shared)
        self._kept: RequestsOp | None = None
        self._going: _Going | None = None
        self.end_ps = self.num_cycled = self.num_emitted = self.num_modelled = 0

    # -- what others see

    @property
    def num_running(self) -> int:
        """Requests in the batch."""
        return len(self._batch.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, those that were put back among them."""
        return len(self._batch.waiting)

    def signals(self) -> ReplicaSignals:
        """See `routers.WatchedReplica`."""
        batch = self._batch
        return ReplicaSignals(
            len(batch.running), len(batch.waiting), batch.queued_tokens, self._memory.target.free_share
        )

    def cached_tokens(self, arrival: Arrival) -> int:
        """See `routers.WatchedReplica`."""
        return self._memory.cached_tokens(arrival, self._memory.target)

    def frozen_prefixes(self) -> CachedTokens:
        """See `routers.WatchedReplica`."""
        return partial(self._memory.cached_tokens, kv=self._memory.target.frozen())

    # -- the machine

    def arrive(self, arrival: Arrival, at_ps: int) -> None:
        """A request comes; one that can never run is rejected."""
        serial = self._shared.enter(arrival, self._index, at_ps, refused=self._memory.refuses(arrival))
        if serial is None:
            return
        self._batch.arrived(TabledRequest(arrival, serial, self._num_levels))
        self._note_state(at_ps)

    def plan(self, now_ps: int) -> int | None:
        """Decide what runs next; see `ServedReplica.plan`."""
        while True:
            op, self._kept = self._kept, None
            op = op or self._queue.next_op()
            if op is not None and op.level < self._target:
                self._going = self._below(op, now_ps)
            else:
                self._going = self._step([] if op is None else op.requests, now_ps)
                if self._going is None:
                    return None
            if self._going is not None:
                break
        self._note_state(now_ps)
        self.end_ps = self._going.end_ps
        return self.end_ps

    def commit(self) -> None:
        """What was planned has run, to its end: requests, caches and the recorder learn of it."""
        going, self._going = self._going, None
        assert going is not None
        if going.forwards:
            self._recorder.busy(self._index, going.level, going.end_ps - going.start_ps, going.forwards)
        if going.op is not None:
            self._commit_below(going.op)
        if going.step is not None:
            self._commit_step(going.step, going.end_ps)
        self._note_state(going.end_ps)

    def close_books(self) -> None:
        """Tell the recorder what it is told once: look-ups in prefix caches, and the answers of who has not ended."""
        for level, kv in enumerate(self._memory.members):
            if kv is not None:
                hits = kv.hits
                asked, found = (hits.asked_blocks, hits.asked_tokens), (hits.found_blocks, hits.found_tokens)
                self._recorder.looked_up(self._index, level, asked, found)
        for request in (*self._batch.running.values(), *self._batch.waiting):
            if request.num_answer:
                self._recorder.emitted(request.serial, request.num_answer)

    # -- operations

    def _below(self, op: RequestsOp, now_ps: int) -> _Going | None:
        """Run an operation of a member below the target; None: nobody is left in it."""
        op = self._batch.below(op, now_ps)
        if not op.requests:
            return None
        duration_ps = num_forwards = 0
        if self._memory.members[op.level] is not None:
            op, self._kept = within_budget(op, self._budget)
            duration_ps, num_forwards = catch_up(self._charges, op, self._budget)
        if op.drafts:
            drafted_ps, forwards = self._charges.drafted(op)
        else:
            drafted_ps, forwards = self._charges.judged(op), 1
        return _Going(op, None, op.level, num_forwards + forwards, now_ps, now_ps + duration_ps + drafted_ps)

    def _step(self, rows: Sequence[TabledRequest], now_ps: int) -> _Going | None:
        """Run a step of the target; None: nobody is there."""
        step = self._batch.step(rows, now_ps)
        if not (step.rows or step.ending or step.chunks):
            assert not self._batch.running, "a batch that has nothing to run"
            assert not self._batch.waiting, "requests that wait beside an empty batch"
            return None
        duration_ps = self._charges.stepped(step.rows, [*step.ending, *step.chunks])
        return _Going(None, step, self._target, 1, now_ps, now_ps + duration_ps)

    # -- what comes of them

    def _commit_below(self, op: RequestsOp) -> None:
        """A member below the target has run."""
        keeps = self._memory.members[op.level] is not None
        drafted = accepted = own = 0
        for request in op.requests:
            step = request.op
            self.num_modelled += step.modelled
            if op.drafts:
                request.draft(step, keeps=keeps)
            else:
                drafted += step.judged
                accepted += step.accepted
                own += step.own
                request.judge(step)
            self._queue.goes_on(request)
        if not op.drafts:
            self._recorder.judged(op.level, drafted, accepted, own, len(op.requests))

    def _commit_step(self, step: TargetStep, end_ps: int) -> None:
        """The target has run: chunks are read, answers have grown, full blocks are cached."""
        memory, batch = self._memory, self._batch
        ended = self._judged(step.rows) if step.rows else []
        for request, tokens in step.chunks:
            request.cached[-1] += tokens
            memory.commit(request)
        rows = step.rows
        for request, _ in step.ending:
            del batch.prefilling[request]
            if request.commit_first():
                ended.append(request)
            else:
                self._queue.goes_on(request)
            rows.append(request)
        self._note_outputs(rows, end_ps)
        for request in rows:
            memory.commit(request)
        for request in sorted(ended, key=lambda request: request.order):
            batch.ended(request)
            self._recorder.finished(request.serial, end_ps)
            self._shared.on_ended(request.arrival, end_ps)

    def _judged(self, rows: Sequence[TabledRequest]) -> list[TabledRequest]:
        """The target has judged; returns requests that are done."""
        drafted = accepted = own = 0
        ended = []
        for request in rows:
            step = request.op
            assert request.round is not None
            self.num_modelled += step.modelled
            drafted += step.judged
            accepted += step.accepted
            own += step.own
            _, committed, ends, _ = request.round
            if request.commit(step.accepted, committed, ends=ends):
                ended.append(request)
            else:
                self._queue.goes_on(request)
        self._recorder.judged(self._target, drafted, accepted, own, len(rows))
        return ended

    # -- what is written down

    def _note_outputs(self, requests: Sequence[TabledRequest], at_ps: int) -> None:
        """Tokens have come out."""
        recorder = self._recorder
        gaps: dict[int, int] = {}
        for request in requests:
            if request.out_at_ps == NEVER:
                recorder.first_token(request.serial, at_ps)
            else:
                gap = at_ps - request.out_at_ps
                gaps[gap] = gaps.get(gap, 0) + 1
            request.out_at_ps = at_ps
            new = request.num_answer - request.num_noted
            self.num_emitted += new
            first = request.answer_tokens
            if request.num_answer > first:
                self.num_cycled += request.num_answer - max(request.num_noted, first)
            request.num_noted += new
        for gap_ps, rows in gaps.items():
            recorder.gaps(gap_ps, 0, 1, rows)

    def _note_state(self, at_ps: int) -> None:
        running, waiting = len(self._batch.running), len(self._batch.waiting)
        self._recorder.state(self._index, at_ps, running, waiting, self._memory.used_blocks)
