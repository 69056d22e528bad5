"""One replica, step by step: it plans an operation, commits it, and tells its books.

How a member below the target reads what its cache lacks: in chunks of the token budget, before it runs.

What a replica writes down: when tokens of requests come out, what it holds, and sums at the end.

What a replica does of a request: all of it, its prefill, or what comes after; and how keys and values get there.

What a replica is made of, and what it shares with the others of its run.

One replica as a state machine: what runs next, until when, and what comes of it. It knows no clock of its own.

A **cycle** lets every decoding request draft, and be judged below the target, lowest member first, as
`decoding.loop` groups it. Then comes one **step** of the target: verifications, chunks of prefills, new requests.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, cast

from ...base.errors import check_within
from ...decoding.legal_steps import Policy
from ...decoding.pool import Pool
from ...decoding.prefix_cache import NO_COUNTS
from ...decoding.results import VERIFY, DraftResults, Forward, Results, VerifyResults, made, op_record
from ...decoding.world import DRAFTS, VERIFIES, Op, VerifyItem
from ...runs.recorder import ServingRecorder
from ...traces.workloads.arrival import PS_PER_S, Arrival
from ..cost.base import CostModel
from ..recorded import RecordedAnswers
from .limits import Admission, EngineLimits, Preemption
from .memory import FirstBlocks, MemberKv, first_blocks_of
from .replica_memory import ReplicaMemory
from .requests import (
    AnswerLengths,
    Batch,
    BatchNotes,
    Deadline,
    DrawnRequests,
    ServedLoop,
    ServedSession,
    ServedView,
    Waiting,
)
from .routers import CachedTokens, ReplicaSignals
from .running import to_ps, to_s
from .scheduler import EngineWorld, Scheduler, ServedWorld, SharedPrefixCost


def behind(op: Op, budget: int) -> bool:
    """Whether the rows of an operation might have to be fed more than `budget` tokens; mostly they are caught up."""
    level, most = op.level, 0
    for session, _ in op.items:
        text = session.num_prompt + len(session.emitted)
        most += text + len(session.tokens) - min(session.cached[level], text - 1)
    return most > budget


def within_budget(op: Op, budget: int) -> tuple[Op, Op | None]:
    """An operation whose rows, all caught up, are fed at most `budget` tokens, or one row; and one with the others."""
    left, count = budget, 0
    for session in _sessions(op):
        left -= _least(session, op.level, drafts=op.kind == DRAFTS)
        if left < 0 and count:
            break
        count += 1
    if count == len(op.items):
        return op, None
    return op._replace(items=op.items[:count]), op._replace(items=op.items[count:])


def catch_up(world: EngineWorld, op: Op, budget: int) -> tuple[int, list[Forward]]:
    """Run forwards of at most `budget` tokens until what the rows of an operation are still to be fed is no more.

    Sessions learn what their caches hold now. Rows are served in their order.

    Returns:
        Picoseconds, and forwards.
    """
    level, drafts = op.level, op.kind == DRAFTS
    sessions = _sessions(op)
    spare = {session: _spare(session, level, drafts=drafts) for session in sessions}
    total = sum(spare.values()) + sum(_least(session, level, drafts=drafts) for session in sessions)
    duration_ps, forwards = 0, list[Forward]()
    while total > budget and sum(spare.values()) > 0:
        left = budget
        chunks = []
        for session in sessions:
            chunk = min(spare[session], left)
            if chunk:
                session.chunk, session.chunk_level = chunk, level
                chunks.append(session)
                left -= chunk
        world.catch_up(level, chunks)
        for session in chunks:
            session.cached[level] += session.chunk
            spare[session] -= session.chunk
            session.chunk = 0
        duration_ps += world.duration_ps
        forwards.append((len(chunks), budget - left, 1, to_s(world.duration_ps)))
        total -= budget - left
    return duration_ps, forwards


def _sessions(op: Op) -> list[ServedSession]:
    return [cast(ServedSession, item[0]) for item in op.items]


def _needed(session: ServedSession, level: int, *, drafts: bool) -> int:
    """Tokens that a cache must hold so that a forward is fed only what it drafts after, or judges."""
    if drafts:
        return session.context_tokens - 1
    return session.num_text + session.first_unjudged(level) - 1


def _least(session: ServedSession, level: int, *, drafts: bool) -> int:
    """Tokens that a caught up row is fed."""
    return session.context_tokens - _needed(session, level, drafts=drafts)


def _spare(session: ServedSession, level: int, *, drafts: bool) -> int:
    """Tokens that may be read before."""
    return max(_needed(session, level, drafts=drafts) - session.cached[level], 0)


# Told of requests whose answers others wait for, and when.
Reached: TypeAlias = Callable[[Iterable[ServedSession], int], None]


class Going(NamedTuple):
    """What a replica runs: an operation, if any, with its results, and chunks of prefills beside it.

    `forwards` are those of a step of the target; an operation below it says its own.
    """

    op: Op | None
    results: Results | None
    chunks: list[VerifyItem]
    ending: list[ServedSession]
    level: int
    forwards: int
    start_ps: int
    end_ps: int


class ReplicaBooks:
    """Tells the recorder of a run.

    Args:
        index: of the replica.
        recorder: of the run.
        batch: of the replica.
        memory: of the replica.
        reached: told of answers that others of their sessions wait for, and when.

    Attributes:
        num_emitted, num_cycled: tokens that came out, and those after the first pass of a recorded answer.
    """

    def __init__(
        self, index: int, recorder: ServingRecorder, batch: Batch, memory: ReplicaMemory, reached: Reached
    ) -> None:
        self._index = index
        self._reached = reached
        self._recorder = recorder
        self._batch = batch
        self._memory = memory
        self._held: tuple[int, int, list[int]] | None = None
        self.num_emitted = self.num_cycled = 0

    def note_outputs(self, sessions: Iterable[ServedSession], at_ps: int) -> None:
        """Write down what is new in answers; all tokens of one request that are new came out together."""
        gaps: dict[int, int] = {}
        reached: list[ServedSession] = []
        for session in sessions:
            num_answer = len(session.earlier) + len(session.emitted)
            num_noted = session.num_noted
            if num_answer == num_noted:
                continue
            if num_noted:
                gap_ps = at_ps - session.noted_at_ps
                gaps[gap_ps] = gaps.get(gap_ps, 0) + 1
            else:
                self._recorder.first_token(session.serial, at_ps)
            self.num_emitted += num_answer - num_noted
            if session.earlier:
                self.num_cycled += num_answer - max(num_noted, session.num_first)
            session.num_noted = num_answer
            session.noted_at_ps = at_ps
            if session.depths and num_answer >= session.depths[0]:
                reached.append(session)
        for gap_ps, rows in gaps.items():
            self._recorder.gaps(gap_ps, 0, 1, rows)
        if reached:
            self._reached(reached, at_ps)

    def note_state(self, at_ps: int) -> None:
        """Write down what is held from now on, if that is something else than before."""
        batch = self._batch
        held = len(batch.running), len(batch.waiting), self._memory.used_blocks
        if held != self._held:
            self._held = held
            self._recorder.state(self._index, at_ps, *held)

    def cut(self, going: Going, until_ps: int) -> None:
        """The run ends while this runs: the member was busy until then, with forwards that are not over."""
        own = () if going.results is None else going.results.forwards
        if going.forwards or any(new and repeats for _, new, repeats, _ in own):
            lasted_ps = min(until_ps, going.end_ps) - going.start_ps
            self._recorder.busy(self._index, going.level, max(lasted_ps, 0), forwards=0)

    def close(self, sessions: Iterable[ServedSession], until_ps: int) -> None:
        """Tell what is told once: look-ups in prefix caches, and the answers of `sessions`, which have not ended."""
        for level, kv in enumerate(self._memory.members):
            if kv is not None:
                hits = kv.hits
                asked, found = (hits.asked_blocks, hits.asked_tokens), (hits.found_blocks, hits.found_tokens)
                self._recorder.looked_up(self._index, level, asked, found)
        if self._memory.host is not None:
            self._recorder.offloaded(self._index, self._memory.host.totals(until_ps))
        for session in sessions:
            if session.num_noted:
                self._recorder.emitted(session.serial, session.num_noted)


class Role(StrEnum):
    """Of a replica; docs/disaggregation.md."""

    both = "both"
    prefill = "prefill"
    decode = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How keys and values get from where a prompt was read to where its answer is decoded.

    Attributes:
        bytes_per_s: of the link, in [1, 1e18].
        latency_s: after the last byte has left, in [0, 1e6]; others may send meanwhile.
        token_bytes: keys and values of one token of the target, >= 0.

    Raises:
        ArgumentError: a number out of range.
    """

    bytes_per_s: float
    latency_s: float
    token_bytes: int

    def __post_init__(self) -> None:
        check_within("`bytes_per_s`", self.bytes_per_s, "[1, 1e18]")
        check_within("`latency_s`", self.latency_s, "[0, 1e6]")
        check_within("`token_bytes`", self.token_bytes, "[0, inf)")


# Makes what carries out a replica's operations, for the members and what is recorded of them.
MakeWorld = Callable[[Pool, RecordedAnswers], EngineWorld]


class Answering(Protocol):
    """A request that answers: how much, and with which further depths others of its session follow."""

    depths: tuple[int, ...]

    @property
    def arrival(self) -> Arrival:
        """What is wanted."""
        ...

    @property
    def num_answer(self) -> int:
        """Tokens of the answer so far."""
        ...

    @property
    def order(self) -> int:
        """Number of its latest admission."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """What one replica is.

    Attributes:
        policy: an object of its own; no other replica may have the same.
        policy_name: for errors.
        cost: seconds.
        limits: of the batch, a step and the memory.
        decide_s: seconds that the policy takes for a step, >= 0.
        make_world: what answers and takes time instead; None: the recording answers, at the seconds of `cost`.
        role: what it does of a request.
    """

    policy: Policy
    policy_name: str
    cost: CostModel
    limits: EngineLimits
    decide_s: float = 0.0
    make_world: MakeWorld | None = None
    role: Role = Role.both

    @property
    def only_by_steps(self) -> str:
        """Which of its options single steps alone know, in words; "" if there is none."""
        if self.role != Role.both:
            return f"role is {self.role}"
        if self.limits.preemption != Preemption.latest:
            return f"preemption is {self.limits.preemption}"
        if self.limits.admission != Admission.first_chunk:
            return f"admission is by {self.limits.admission}"
        if self.limits.offload is not None:
            return "evicted blocks go to host memory"
        if self.limits.shared_prefix is not None:
            return "rows share the reading of a common prefix"
        if self.decide_s:
            return f"policy {self.policy_name} takes time to decide"
        return ""

    def world(
        self,
        pool: Pool,
        answers: RecordedAnswers,
        now_s: Callable[[], float],
        target: Callable[[], MemberKv],
    ) -> EngineWorld:
        """What carries out its operations.

        Args:
            pool: the members.
            answers: of the recording.
            now_s: reads the clock of the run.
            target: its memory.

        Raises:
            ArgumentError: a prefix that rows share, and a cost that does not tell what is read.
        """
        if self.make_world is not None:
            return self.make_world(pool, answers)
        rule = self.limits.shared_prefix
        if rule is None:
            return ServedWorld(answers=answers, pool=pool, cost=self.cost, now_s=now_s)
        rows: list[int] = []

        def repeated_tokens() -> int:
            least = {"least_tokens": rule.least_tokens, "least_owners": rule.least_rows}
            return target().repeated_tokens(rows, **least)

        common_tokens = repeated_tokens if rule.groups else lambda: target().common_tokens
        shared = SharedPrefixCost(self.cost, rule, common_tokens)
        return ServedWorld(answers=answers, pool=pool, cost=self.cost, target_cost=shared, now_s=now_s, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFrom:
    """What all replicas of a run share.

    Attributes:
        pool: members of the recording.
        answers: of the recording.
        lengths: of the target's own answers to its requests.
        drawn: which of its requests stands for a served one.
        unit_tokens: of the blocks of the workload.
        deadlines: of classes of service levels, by name; "" is for all others, and None for a class without one.
        recorder: told what happens.
        outputs: takes the tokens of every finished request by its id; None drops them.
        on_ended: told of each request that finished or was rejected, and when.
        on_reached: told when answers have as many tokens as others of their sessions wait for.
    """

    pool: Pool
    answers: RecordedAnswers
    lengths: AnswerLengths
    drawn: DrawnRequests
    unit_tokens: int
    deadlines: Mapping[str, Deadline | None]
    recorder: ServingRecorder
    outputs: dict[str, list[int]] | None
    on_ended: Callable[[Arrival, int], None]
    on_reached: Callable[[Arrival, int, int], None]

    def enter(self, arrival: Arrival, index: int, at_ps: int, *, refused: str) -> int | None:
        """Take note of a request that comes to the replica at `index`.

        Args:
            arrival: the request.
            index: of the replica, among those of the run.
            at_ps: when it comes.
            refused: why it can never run there; "" if it can.

        Returns:
            Its serial number in the run; None: it is rejected.
        """
        serial = self.recorder.arrived(arrival, index)
        if refused:
            self.recorder.rejected(serial, at_ps, refused)
            self.on_ended(arrival, at_ps)
            return None
        return serial

    def reached(self, requests: Iterable[Answering], at_ps: int) -> None:
        """Tell of depths that answers have reached, and that nobody was told of; those admitted earlier first."""
        for request in sorted(requests, key=_order):
            while request.depths and request.depths[0] <= request.num_answer:
                depth, *left = request.depths
                request.depths = tuple(left)
                self.on_reached(request.arrival, depth, at_ps)

    def session(self, arrival: Arrival, serial: int) -> ServedSession:
        """The session of a request that is looked at for the first time."""
        deadline = self.deadlines.get(arrival.slo, self.deadlines.get(""))
        return ServedSession(
            pool=self.pool,
            arrival=arrival,
            serial=serial,
            answers=self.answers,
            recorded_id=self.drawn.of(arrival.request_id, arrival.tag),
            due=None if deadline is None else deadline.after(to_s(arrival.arrives_ps)),
        )


def _order(request: Answering) -> int:
    return request.order


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
        if op is None or op.kind != DRAFTS:
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
        assert op is None or op.kind in (DRAFTS, VERIFIES)  # this world knows no trees
        if self._decide_s:
            now_ps += round((loop.load.now_s - now_s) / self._decide_s) * self._decide_ps
        if self._notes.committed:
            for request_id in self._notes.take_committed():
                self._books.note_outputs([self._sessions[request_id]], now_ps)
        return op, now_ps

    def _below(self, op: Op, now_ps: int, start_ps: int) -> Going | None:
        """Run an operation of a member below the target; None: nobody is left in it."""
        world, level = self._world, op.level
        op = made(Op, (op.kind, level, self._scheduler.below(level, op.items, now_ps), ()))
        if not op.items:
            return None
        duration_ps, caught_up = 0, list[Forward]()
        if self._memory.members[level] is not None and behind(op, self._budget):
            op, self._kept = within_budget(op, self._budget)
            duration_ps, caught_up = catch_up(world, op, self._budget)
        rows, forwards, *_ = results = cast(DraftResults | VerifyResults, op.run(world))
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
        rows = [] if op is None else op.items
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
        ran = made(Op, (VERIFIES, level, step.rows, ())) if step.rows else None
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
