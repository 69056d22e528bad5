"""Operations of a replica of fixed rounds one by one, as `engine.Replica` runs them, from numbers alone."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .numbers import (
    RequestQueue,
    RequestsOp,
    TabledBatch,
    TabledBooks,
    TabledCharges,
    TabledRequest,
    TargetStep,
    catch_up,
    within_budget,
)
from .replica import ServedFrom
from .replica_memory import ReplicaMemory


class Going(NamedTuple):
    """What runs: an operation below the target, or a step of it."""

    op: RequestsOp | None
    step: TargetStep | None
    level: int
    forwards: int
    start_ps: int
    end_ps: int


class SingleOps:
    """Plans an operation, and says what came of it.

    Args:
        queue: who comes next.
        batch: of the replica.
        memory: of the replica.
        charges: picoseconds.
        books: of the replica.
        shared: what the replica shares with others.
        budget: tokens that a forward is fed at most.
    """

    def __init__(
        self,
        *,
        queue: RequestQueue,
        batch: TabledBatch,
        memory: ReplicaMemory,
        charges: TabledCharges,
        books: TabledBooks,
        shared: ServedFrom,
        budget: int,
    ) -> None:
        self._queue = queue
        self._batch = batch
        self._memory = memory
        self._charges = charges
        self._books = books
        self._shared = shared
        self._budget = budget
        self._target = shared.pool.target_level
        self._kept: RequestsOp | None = None

    @property
    def is_between_rounds(self) -> bool:
        """Whether every request that decodes is about to begin a round."""
        return self._kept is None and not self._batch.late and self._queue.is_between_rounds

    def plan(self, now_ps: int) -> Going | None:
        """What runs next; None: nothing is there to run. Raises as `ServedReplica.plan`."""
        while True:
            op, self._kept = self._kept, None
            op = op or self._queue.next_op()
            if op is None or op.level == self._target:
                return self.plan_step([] if op is None else op.requests, now_ps)
            going = self._below(op, now_ps)
            if going is not None:
                return going

    def commit(self, going: Going) -> list[TabledRequest]:
        """What was planned has run; returns requests that are done, and were told so to others."""
        self._books.ran(going.level, going.end_ps - going.start_ps, going.forwards)
        if going.op is not None:
            self._commit_below(going.op)
        ended: list[TabledRequest] = []
        if going.step is not None:
            ended = self._judged(going.step.rows)
            begun = self.commit_prefills(going.step, going.end_ps, ended)
            self._books.came_out(going.step.rows, going.end_ps)
            for request in (*going.step.rows, *(one for one, _ in going.step.ending)):
                self._memory.commit(request)
            for request in begun:
                self._queue.goes_on(request)
            rows = [*going.step.rows, *(one for one, _ in going.step.ending)]
            self.reach(rows, going.end_ps)
            self.end(ended, going.end_ps)
        return ended

    def plan_step(self, rows: Sequence[TabledRequest], now_ps: int) -> Going | None:
        """A step of the target; None: nobody is there."""
        step = self._batch.step(rows, now_ps)
        if not (step.rows or step.ending or step.chunks):
            assert not self._batch.running, "a batch that has nothing to run"
            assert not self._batch.waiting, "requests that wait beside an empty batch"
            return None
        duration_ps = self._charges.stepped(step.rows, [*step.ending, *step.chunks])
        return Going(None, step, self._target, 1, now_ps, now_ps + duration_ps)

    def commit_prefills(self, step: TargetStep, end_ps: int, ended: list[TabledRequest]) -> list[TabledRequest]:
        """The target has read chunks; returns requests that begin to decode. Others may be done, and join `ended`.

        What ends of prefills enters the prefix cache after what others wrote: that is left to the caller.
        """
        begun: list[TabledRequest] = []
        for request, tokens in step.chunks:
            request.cached[-1] += tokens
            self._memory.commit(request)
        for request, _ in step.ending:
            del self._batch.prefilling[request]
            (ended if request.commit_first() else begun).append(request)
        self._books.came_out([request for request, _ in step.ending], end_ps)
        return begun

    def reach(self, requests: Iterable[TabledRequest], end_ps: int) -> None:
        """Tell of depths that answers have reached."""
        waited_for = [one for one in requests if one.depths]
        if waited_for:
            self._shared.reached(waited_for, end_ps)

    def end(self, ended: list[TabledRequest], end_ps: int) -> None:
        """Requests are done, and release their blocks, those admitted earlier first."""
        for request in sorted(ended, key=lambda request: request.order):
            self._batch.ended(request)
            self._shared.recorder.finished(request.serial, end_ps)
            self._shared.on_ended(request.arrival, end_ps)

    def _below(self, op: RequestsOp, now_ps: int) -> Going | None:
        """Run an operation of a member below the target; None: nobody is left in it."""
        op = self._batch.below(op, now_ps)
        if not op.requests:
            return None
        duration_ps = num_forwards = 0
        if self._memory.members[op.level] is not None:
            op, self._kept = within_budget(op, self._budget)
            duration_ps, num_forwards = catch_up(self._charges, op, self._budget)
        if op.drafts:
            ran_ps, forwards = self._charges.drafted(op)
        else:
            ran_ps, forwards = self._charges.judged(op), 1
        return Going(op, None, op.level, num_forwards + forwards, now_ps, now_ps + duration_ps + ran_ps)

    def _commit_below(self, op: RequestsOp) -> None:
        """A member below the target has run."""
        keeps = self._memory.members[op.level] is not None
        drafted = accepted = own = 0
        for request in op.requests:
            step = request.op
            self._books.num_modelled += step.modelled
            if op.drafts:
                request.draft(step, keeps=keeps)
            else:
                drafted += step.judged
                accepted += step.accepted
                own += step.own
                request.judge(step)
            self._queue.goes_on(request)
        if not op.drafts:
            self._books.judged(op.level, drafted, accepted, own, len(op.requests))

    def _judged(self, rows: Sequence[TabledRequest]) -> list[TabledRequest]:
        """The target has judged; returns requests that are done."""
        drafted = accepted = own = 0
        ended = []
        for request in rows:
            step = request.op
            assert request.round is not None
            self._books.num_modelled += step.modelled
            drafted += step.judged
            accepted += step.accepted
            own += step.own
            _, committed, ends, _ = request.round
            if request.commit(step.accepted, committed, ends=ends):
                ended.append(request)
            else:
                self._queue.goes_on(request)
        self._books.judged(self._target, drafted, accepted, own, len(rows))
        return ended
