"""One replica as a state machine: what runs next, until when, and what comes of it. It knows no clock of its own.

A **cycle** lets every decoding request draft, and be judged below the target, lowest member first, as
`decoding.loop` groups it. Then comes one **step** of the target: verifications, chunks of prefills, new requests.
"""

from functools import partial
from typing import cast

from ....decoding.ledger import VERIFY, op_record
from ....decoding.prefixes.counts import NO_COUNTS
from ....decoding.results import Forward, VerifyResults, made
from ....decoding.world import DraftOp, Op, VerifyOp
from ....traces.workloads.arrival import Arrival
from ....traces.workloads.exact_seconds import PS_PER_S
from ..clock import to_ps, to_s
from ..kv.first_blocks import FirstBlocks, first_blocks_of
from ..routers import ReplicaSignals
from ..routers.dispatcher import CachedTokens
from .batch import Waiting
from .catch_up import behind, catch_up, within_budget
from .replica_books import Going, ReplicaBooks
from .replica_memory import ReplicaMemory
from .replica_spec import ReplicaSpec, ServedFrom
from .scheduler import Scheduler
from .served_loop import BatchNotes, ServedLoop
from .served_session import ServedSession, ServedView


class Replica:
    """Serves requests. Whoever drives it calls `plan`, lets the time pass, and calls `commit`; `arrive` at any time.

    Args:
        index: among the replicas of the run.
        spec: what it is.
        shared: what it shares with the others.
        may_lag: see below.

    Attributes:
        end_ps: of what was planned.
        may_lag: whether nobody else learns what it does.
    """

    def __init__(self, index: int, spec: ReplicaSpec, shared: ServedFrom, *, may_lag: bool) -> None:
        pool = shared.pool
        self._index = index
        self._shared = shared
        self.may_lag = may_lag
        self._target = pool.target_level
        self._recorder = shared.recorder
        self._world = spec.world(pool, shared.answers, lambda: self._loop.load.now_s, lambda: self._memory.target)
        self._notes = BatchNotes(len(pool.members))
        self._decide_s, self._decide_ps = spec.decide_s, to_ps(spec.decide_s)
        self._budget = spec.limits.token_budget
        self._loop = ServedLoop(
            pool=pool,
            policy=spec.policy,
            name=spec.policy_name,
            world=self._world,
            notes=self._notes,
            decide_s=spec.decide_s,
            view=ServedView,
        )
        self._memory = ReplicaMemory(pool, spec.limits, shared.unit_tokens)
        self._first_blocks = first_blocks_of(self._memory.target, shared.unit_tokens)
        self._scheduler = Scheduler(
            limits=spec.limits,
            loop=self._loop,
            world=self._world,
            memory=self._memory,
            recorder=shared.recorder,
            open_session=self._opened,
        )
        self._batch = self._scheduler.batch
        self._sessions: dict[str, ServedSession] = {}
        self._kept: Op | None = None
        self._going: Going | None = None
        self._books = ReplicaBooks(index, shared.recorder, self._batch, self._memory, shared.reached)
        self.end_ps = 0

    # -- what others see

    @property
    def num_running(self) -> int:
        """Requests in the batch."""
        return len(self._batch.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, those that were put back among them."""
        return len(self._batch.waiting)

    @property
    def num_emitted(self) -> int:
        """See `ServedReplica`."""
        return self._books.num_emitted

    @property
    def num_cycled(self) -> int:
        """See `ServedReplica`."""
        return self._books.num_cycled

    @property
    def num_modelled(self) -> int:
        """Decisions that were modelled rather than replayed."""
        return self._notes.num_modelled

    def signals(self) -> ReplicaSignals:
        """See `routers.WatchedReplica`."""
        queued_tokens, free_share = self._batch.queued_tokens, self._memory.target.free_share
        return ReplicaSignals(self.num_running, self.num_waiting, queued_tokens, free_share)

    def cached_tokens(self, arrival: Arrival) -> int:
        """See `routers.WatchedReplica`."""
        return self._memory.cached_tokens(arrival, self._memory.target)

    def first_blocks(self) -> FirstBlocks:
        """See `routers.WatchedReplica`."""
        return self._first_blocks

    def frozen_prefixes(self) -> CachedTokens:
        """See `routers.WatchedReplica`."""
        return partial(self._memory.cached_tokens, kv=self._memory.target.frozen())

    # -- the machine

    def refuses(self, arrival: Arrival) -> str:
        """Why a request can never run, in words that such requests share; "" if it can."""
        return self._memory.refuses(arrival)

    def arrive(self, arrival: Arrival, at_ps: int) -> None:
        """A request comes; one that can never run is rejected."""
        serial = self._shared.enter(arrival, self._index, at_ps, refused=self.refuses(arrival))
        if serial is None:
            return
        self._batch.arrived(Waiting(arrival, serial))
        self._loop.load.num_waiting += 1
        self._books.note_state(at_ps)

    def plan(self, now_ps: int, until_ps: int = 0) -> int | None:
        """Decide what runs next.

        Returns:
            When it ends, >= `now_ps`; None: nothing is there to run.

        Raises:
            PolicyError: the policy broke the contract.
            UnrecordedContextError: strict, and a decision is not recorded.
            CostRangeError: an operation outside what the cost model knows.
        """
        start_ps = now_ps
        while True:
            op, self._kept = self._kept, None
            if op is None:
                op, start_ps = self._asked(start_ps)
            if self._loop.finished:  # by a Commit
                self._kept = op
                self._going = Going(None, None, [], [], 0, 0, start_ps, start_ps)
                break
            if op is not None and op.level < self._target:
                self._going = self._below(op, now_ps, start_ps)
            else:
                self._going = self._step(op, now_ps, start_ps)
                if self._going is None:
                    return None
            if self._going is not None:
                break
        self._books.note_state(now_ps)
        self.end_ps = self._going.end_ps
        return self.end_ps

    def commit(self) -> None:
        """What was planned has run: sessions, policy, caches and the recorder learn of it."""
        going, self._going = self._going, None
        assert going is not None
        op, results, _, _, level, num_forwards, start_ps, end_ps = going
        loop = self._loop
        if op is not None and results is not None:
            loop.finish(op, results, start_s=to_s(start_ps), now_s=to_s(end_ps))
            if level < self._target:
                num_forwards += self._notes.num_forwards
        if num_forwards:
            self._recorder.busy(self._index, level, end_ps - start_ps, num_forwards)
        if level == self._target:
            self._commit_step(going)
        if op.__class__ is not DraftOp:
            self._tell_judged()
        if loop.finished:
            self._end_finished(end_ps)
        loop.load.free_kv_share = self._memory.free_share
        self._books.note_state(end_ps)

    # -- operations

    def _asked(self, now_ps: int) -> tuple[Op | None, int]:
        """The operation that the loop wants next, and when everybody has been asked."""
        loop = self._loop
        now_s = now_ps / PS_PER_S
        op = loop.next_op(now_s)
        assert op is None or isinstance(op, DraftOp | VerifyOp)  # this world knows no trees
        if self._decide_s:
            now_ps += round((loop.load.now_s - now_s) / self._decide_s) * self._decide_ps
        if self._notes.committed:
            for request_id in self._notes.take_committed():
                self._books.note_outputs([self._sessions[request_id]], now_ps)
        return op, now_ps

    def _below(self, op: Op, now_ps: int, start_ps: int) -> Going | None:
        """Run an operation of a member below the target; None: nobody is left in it."""
        world, level = self._world, op.level
        if isinstance(op, DraftOp):
            op = made(DraftOp, (level, self._scheduler.below(level, op.items, now_ps)))
        else:
            op = made(VerifyOp, (level, self._scheduler.below(level, op.items, now_ps)))
        if not op.items:
            return None
        duration_ps, caught_up = 0, list[Forward]()
        if self._memory.members[level] is not None and behind(op, self._budget):
            op, self._kept = within_budget(op, self._budget)
            duration_ps, caught_up = catch_up(world, op, self._budget)
        rows, forwards, *_ = results = op.run(world)
        if caught_up:
            forwards = caught_up + forwards
        duration_ps += world.duration_ps
        results = made(
            results.__class__, (rows, forwards, to_s(duration_ps), self._memory.free_share, results.prefixes)
        )
        end_ps = start_ps + duration_ps
        return made(Going, (op, results, [], [], level, 0, start_ps, end_ps))

    def _step(self, op: Op | None, now_ps: int, start_ps: int) -> Going | None:
        """Run a step of the target; None: nobody is there."""
        rows = [] if op is None else cast(VerifyOp, op).items
        step = self._scheduler.step(rows, now_ps)
        if not (step.rows or step.chunks):
            assert not self._batch.running, "a batch that has nothing to run"
            assert not self._batch.waiting or any(self._memory.used_blocks), "who waits beside an empty batch"
            return None
        level = self._target
        judged, forwards, duration_s, *_ = self._world.verify(level, step.rows, step.chunks)
        results = made(VerifyResults, (judged, forwards, duration_s, self._memory.free_share, NO_COUNTS))
        end_ps = start_ps + self._world.duration_ps
        if self._memory.host is not None:
            end_ps += self._memory.host.take_load_ps(start_ps)
        ran = made(VerifyOp, (level, step.rows)) if step.rows else None
        return made(Going, (ran, results, step.chunks, step.ending, level, 1, start_ps, end_ps))

    def _commit_step(self, going: Going) -> None:
        """The target has run: chunks are read, answers have grown, full blocks are cached."""
        op, results, chunks, ending, level, _, start_ps, end_ps = going
        for one, _ in chunks:
            session = cast(ServedSession, one)
            session.cached[level] += session.chunk
            session.chunk = 0
            self._memory.commit(session)
        for session in ending:
            self._batch.read(session)
        rows = [] if op is None else cast(list[ServedSession], [item[0] for item in op.items])
        self._books.note_outputs(rows, end_ps)
        for session in rows:
            self._memory.commit(session)
        if results is not None and (chunks or op is None):  # else the loop has noted all that ran
            load = self._loop.load
            load.now_s = to_s(end_ps)
            load.note_ran(op_record(VERIFY, level, len(rows) + len(chunks), results, to_s(start_ps)))

    def _end_finished(self, at_ps: int) -> None:
        """Requests that are done release their blocks, those admitted earlier first."""
        done, self._loop.finished = self._loop.finished, []
        for session in sorted((cast(ServedSession, one) for one in done), key=lambda session: session.order):
            del self._sessions[session.request_id]
            self._scheduler.ended(session)
            if self._shared.outputs is not None:
                self._shared.outputs[session.request_id] = session.earlier + session.emitted
            self._recorder.finished(session.serial, at_ps)
            self._shared.on_ended(session.arrival, at_ps)

    def _tell_judged(self) -> None:
        for level in range(self._target + 1):
            num_rows, drafted, accepted, own = self._notes.take_judged(level)
            if num_rows:
                self._recorder.judged(level, drafted, accepted, own, num_rows)

    def _opened(self, waiting: Waiting) -> ServedSession:
        """The session of a request that is looked at for the first time."""
        session = self._shared.session(waiting.arrival, waiting.serial)
        self._sessions[session.request_id] = session
        return session

    def close_books(self, until_ps: int) -> None:
        """See `ServedReplica`."""
        if self._going is not None:
            self._books.cut(self._going, until_ps)
        self._books.close(self._sessions.values(), until_ps)
