"""Who takes part in a replica's next operation, within budget, batch and blocks, and the world that answers it.

The world of a served batch: what a replica asks for, and how a recording answers it.

Rows are answered one by one, what runs together is charged together.

Who takes part in a replica's next operation: token budget, batch size and blocks are kept here.

The order of things is vLLM's: running requests come first, those admitted earlier before others; then those that wait,
in their order. Where blocks are short, the latest that was admitted is put back, and computed again when it returns.
With `Preemption.fewest_tokens` those that run come by the length of their answers, and the shortest is put back.

Attention that reads a text which requests of a batch begin with once, and not once for each row.

Engines that do so have blocks of that text in one place, for it is in the prefix cache. vLLM calls it cascade
attention (`use_cascade_attention`): of a step in which every request that runs refers to the same first blocks, the
kernel reads those once for all rows, and then what is each row's own. Multi-level cascades (FlashInfer; Hydragen,
arXiv:2402.05099) do it for every group of rows. Rows still attend to all of it: only bytes are saved, not arithmetic.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

from ...base.errors import ArgumentError
from ...decoding.loop import Loop
from ...decoding.pool import Pool
from ...decoding.prefix_cache import NO_COUNTS
from ...decoding.results import DraftResults, Forward, VerifyResults, made
from ...decoding.rules import Signal
from ...decoding.session import Session
from ...decoding.steps import Draft, Verify
from ...decoding.world import DraftItem, Op, VerifyItem, World
from ...runs.recorder import ServingRecorder
from ..cost.base import CostModel, WrappedCost
from ..recorded import RecordedAnswers
from .charges import ServingCharges, in_whole_ps
from .limits import Admission, EngineLimits, Preemption, SharedPrefix
from .replica_memory import ReplicaMemory
from .requests import NEVER, AdmissionEstimate, Batch, ServedSession, Waiting, Written, retracted_last
from .running import to_s


class EngineWorld(World, Protocol):
    """What carries out the operations of one replica, of sessions that are `ServedSession`s.

    No row fails or is deferred: the replica counts blocks itself. What only reads, `chunks` and `catch_up`, feeds each
    session `ServedSession.chunk` tokens after those that the member's cache holds, and is told of nothing afterwards.

    Attributes:
        duration_ps: of the latest operation.
    """

    duration_ps: int

    def put_back(self, session: Session) -> None:
        """The request left the batch, its caches are empty; it may come back, and is not opened again then."""
        ...

    def verify(self, level: int, items: Sequence[VerifyItem], chunks: Sequence[VerifyItem] = ()) -> VerifyResults:
        """Let the member at `level` judge; `chunks` are fed in the same forward and judged by nobody."""
        ...

    def catch_up(self, level: int, sessions: Sequence[Session]) -> None:
        """Let the member at `level` read a chunk of each text; nothing is drafted or judged."""
        ...


class ServedWorld:
    """Answers the operations of one replica from a recording, and charges them; see `EngineWorld`.

    Args:
        answers: of the recording.
        pool: its members in level order.
        cost: seconds.
        target_cost: of forwards of the target; None: those of `cost`.
        now_s: reads the replica's clock.
        rows: takes the requests of each verification before it is charged, by serial; None: nobody looks.

    Attributes:
        duration_ps: of the latest operation.
    """

    def __init__(
        self,
        *,
        answers: RecordedAnswers,
        pool: Pool,
        cost: CostModel,
        now_s: Callable[[], float],
        target_cost: CostModel | None = None,
        rows: list[int] | None = None,
    ) -> None:
        self._answers = answers
        self._rows = rows
        self._charges = ServingCharges(cost, pool, now_s, target_cost)
        self._reads = Verify(pool.target)
        self.duration_ps = 0

    def open(self, session: Session) -> None:
        """Nothing: a served session replays its request from when it is made."""

    def close(self, session: Session) -> None:
        """Forget the request."""
        self._answers.release(session.request_id)
        self._charges.close(session.request_id)

    def put_back(self, session: Session) -> None:
        """See `EngineWorld`; what it replays stays."""
        self._charges.close(session.request_id)

    def signal(self, session: Session, index: int) -> Signal:
        """What the drafter said of the pending token at `index`."""
        return self._answers.signal(session, index)

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """Let the member at `level` draft."""
        answers = self._answers
        forwards: list[Forward] = []
        if level < answers.num_free:
            drafted = [answers.looked_up(session, step) for session, step in items]
            self.duration_ps = self._charges.looked_up(len(items))
        else:
            drafted = [answers.drafted(session, step, level) for session, step in items]
            forwards, self.duration_ps = self._charges.drafted(level, items, drafted)
        return made(DraftResults, (drafted, forwards, to_s(self.duration_ps), 1.0, NO_COUNTS))

    def verify(self, level: int, items: Sequence[VerifyItem], chunks: Sequence[VerifyItem] = ()) -> VerifyResults:
        """See `EngineWorld`."""
        judged = [self._answers.judged(session, step, level) for session, step in items]
        if self._rows is not None:
            self._rows[:] = [cast(ServedSession, session).serial for session, _ in (*items, *chunks)]
        forward, self.duration_ps = self._charges.verified(level, [*items, *chunks] if chunks else items)
        return made(VerifyResults, (judged, [forward], to_s(self.duration_ps), 1.0, NO_COUNTS))

    def catch_up(self, level: int, sessions: Sequence[Session]) -> None:
        """See `EngineWorld`."""
        _, self.duration_ps = self._charges.verified(level, [(session, self._reads) for session in sessions])


Item = TypeVar("Item", DraftItem, VerifyItem)


class TargetStep(NamedTuple):
    """One step of the target.

    Attributes:
        rows: verifications and plain decoding, and prefills that end.
        ending: of these, requests whose prefill ends.
        chunks: prefills that go on afterwards.
    """

    rows: list[VerifyItem]
    ending: list[ServedSession]
    chunks: list[VerifyItem]


class Scheduler:
    """Mutates the batch, the memory, and what the loop holds; knows no time but what it is told.

    Args:
        limits: of the replica.
        loop: whose requests these are.
        world: of the loop.
        memory: of the replica.
        recorder: told who enters and who is put back.
        open_session: makes the session of a request that waits.

    Attributes:
        batch: who waits and who runs.
    """

    def __init__(
        self,
        *,
        limits: EngineLimits,
        loop: Loop,
        world: EngineWorld,
        memory: ReplicaMemory,
        recorder: ServingRecorder,
        open_session: Callable[[Waiting], ServedSession],
    ) -> None:
        self.batch = Batch()
        self._limits = limits
        self._loop = loop
        self._world = world
        self._memory = memory
        self._recorder = recorder
        self._open_session = open_session
        self._target = loop.pool.target_level
        self._retracts = limits.preemption == Preemption.fewest_tokens
        self._rank: Callable[[DraftItem | VerifyItem], int | tuple[int, int, int]] = (
            _retracted_last if self._retracts else _order
        )
        self._estimate = AdmissionEstimate() if limits.admission == Admission.estimate else None
        self._late: list[VerifyItem] = []
        self._was_short = False
        self._num_put_back = 0

    @property
    def only_decodes(self) -> bool:
        """Whether all requests take part in what is asked for next: nobody waits, reads a prompt or was left over."""
        return not (self.batch.waiting or self.batch.prefilling or self._late)

    def held_by_all(self, op: Op) -> bool:
        """Hold blocks for an operation as `below` and `step` do, as long as nobody has to be put back for them.

        Returns:
            False: memory is short, and the rest is left to these.
        """
        items: list[DraftItem | VerifyItem] = [*op.items]
        for one, step in sorted(items, key=self._rank):
            session = cast(ServedSession, one)
            asked = min(step.tokens, session.room) if isinstance(step, Draft) else 0
            wanted = session.context_tokens + asked + 1
            for member in (op.level, self._target):
                if not self._memory.reserve(session, member, wanted):
                    return False
        return True

    def below(self, level: int, items: list[Item], now_ps: int) -> list[Item]:
        """Hold blocks for an operation of a member below the target, as many as are asked for.

        The target's are held as well, so that what is drafted can be verified.

        Returns:
            The requests that still run.
        """
        num_put_back, all_run = self._num_put_back, True
        for one, step in self._in_order(items):
            session = cast(ServedSession, one)
            if session.order == NEVER:
                all_run = False
                continue
            asked = min(step.tokens, session.room) if isinstance(step, Draft) else 0
            wanted = session.context_tokens + asked + 1
            if self._hold(session, level, wanted, now_ps):
                self._hold(session, self._target, wanted, now_ps)
        if all_run and self._num_put_back == num_put_back:
            return items
        return [item for item in items if _runs(item)]

    def step(self, rows: list[VerifyItem], now_ps: int) -> TargetStep:
        """Fill a step of the target: `rows` and those left over from the step before, chunks, new requests."""
        rows, self._late = [item for item in self._late if _runs(item)] + rows, []
        num_put_back, target, budget = self._num_put_back, self._target, self._limits.token_budget
        left, all_run = budget, True
        late: set[int] = set()
        for one, _ in self._in_order(rows):
            session = cast(ServedSession, one)
            if session.order == NEVER:
                all_run = False
                continue
            new_tokens, _ = session.feed(target, verify=True)
            if new_tokens > left < budget:
                late.add(id(session))
            elif self._hold(session, target, session.context_tokens + 1, now_ps):
                left -= new_tokens
        if late or self._num_put_back != num_put_back:
            self._late = [item for item in rows if id(item[0]) in late and _runs(item)]
            rows = [item for item in rows if id(item[0]) not in late]
        chunks = self._chunks(left, now_ps) if self.batch.prefilling else []
        left -= sum([tokens for _, tokens in chunks])
        # Where memory was short, others get what they need first; a Commit may have ended all of them since.
        if self.batch.waiting and not (self._was_short and self.batch.running):
            chunks += self._admitted(left, now_ps)
        if self._estimate is not None:
            running = map(_written, self.batch.running)
            self._estimate.stepped(running, decoded=bool(rows), was_short=self._was_short)
        self._was_short = False
        if not all_run or self._num_put_back != num_put_back:
            rows = [item for item in rows if _runs(item)]
        return self._laid_out(rows, chunks)

    def ended(self, session: ServedSession) -> None:
        """A request is done, and releases its blocks."""
        self.batch.ended(session)
        self._memory.close(session)

    def _chunks(self, left: int, now_ps: int) -> list[tuple[VerifyItem, int]]:
        """The next chunks of prefills that have begun, with their tokens."""
        chunks = []
        for session, item in list(self.batch.prefilling.items()):
            tokens = min(session.prefill_left, left)
            upto = session.cached[self._target] + tokens
            if tokens > 0 and self._hold(session, self._target, upto + (upto == session.num_text), now_ps):
                chunks.append((item, tokens))
                left -= tokens
        return chunks

    def _admitted(self, left: int, now_ps: int) -> list[tuple[VerifyItem, int]]:
        """The first chunks of requests that waited, with their tokens."""
        batch, loop = self.batch, self._loop
        chunks = []
        while batch.waiting and left > 0 and len(batch.running) < self._limits.max_num_seqs:
            first = batch.waiting[0]
            if first.session is None:
                first.session = self._open_session(first)
            session = first.session
            if self._estimate is not None and not self._has_room(session, self._estimate):
                break
            tokens = self._memory.admit(session, left)
            if not tokens:
                break
            item = loop.admit_apart(session)
            batch.admitted(session, item)
            loop.load.num_waiting -= 1
            if not session.scheduled:
                session.scheduled = True
                self._recorder.scheduled(session.serial, now_ps, session.cached)
            chunks.append((item, tokens))
            left -= tokens
        return chunks

    def _has_room(self, session: ServedSession, estimate: AdmissionEstimate) -> bool:
        """Whether so much is free as is guessed to be needed; who would run alone may enter in any case."""
        running, reading = self.batch.running, self.batch.prefilling
        decoding = [_written(one) for one in running if one not in reading]
        more = estimate.tokens_for(_written(session), decoding, map(_written, reading))
        return not running or self._memory.has_room(session, session.num_text + more)

    def _laid_out(self, rows: list[VerifyItem], chunks: Sequence[tuple[VerifyItem, int]]) -> TargetStep:
        """Tell chunks that end a prefill from others, which sessions learn of."""
        step = TargetStep(rows, [], [])
        for item, tokens in chunks:
            session = cast(ServedSession, item[0])
            if tokens == session.prefill_left:
                step.ending.append(session)
                step.rows.append(item)
            else:
                session.chunk, session.chunk_level = tokens, self._target
                step.chunks.append(item)
        return step

    def _hold(self, session: ServedSession, level: int, num_tokens: int, now_ps: int) -> bool:
        """Let a request hold blocks, if need be those of others; False: it has to go itself, and is put back."""
        if num_tokens <= session.room_held[level]:
            return True
        while not self._memory.reserve(session, level, num_tokens):
            self._num_put_back += 1
            leaving = self.batch.retract(session) if self._retracts else self.batch.put_back()
            self._loop.withdraw(leaving)
            self._memory.put_back(leaving)
            self._world.put_back(leaving)
            leaving.forget_caches()
            self._loop.load.num_waiting += 1
            self._recorder.preempted(leaving.serial, now_ps)
            self._was_short = True
            if leaving is session:
                return False
        return True

    def _in_order(self, items: list[Item]) -> list[Item]:
        """As blocks are held for them."""
        return sorted(items, key=self._rank) if len(items) > 1 else items


def _order(item: DraftItem | VerifyItem) -> int:
    return cast(ServedSession, item[0]).order


def _retracted_last(item: DraftItem | VerifyItem) -> tuple[int, int, int]:
    return retracted_last(cast(ServedSession, item[0]))


def _written(session: ServedSession) -> Written:
    return Written(session.num_answer, session.arrival.output_tokens)


def _runs(item: DraftItem | VerifyItem) -> bool:
    return cast(ServedSession, item[0]).order != NEVER


class SharedPrefixCost(WrappedCost):
    """Seconds of forwards of which every row begins with the same text.

    Args:
        cost: of forwards.
        rule: when a text is read once.
        common_tokens: says how many tokens every row begins with and holds, >= 0; asked at each forward. With groups:
            how many tokens the rows hold together, less those that have to be read.

    Raises:
        ArgumentError: a cost that does not tell what is read from what is attended to.
    """

    def __init__(self, cost: CostModel, rule: SharedPrefix, common_tokens: Callable[[], int]) -> None:
        if not cost.knows_reads:
            raise ArgumentError(
                "shared_prefix of a replica needs a cost that tells what is read, a device of the sheet or a FILE.json "
                f"with grids or lines; {cost.name} does not"
            )
        super().__init__(cost, cost.name)
        self._each = in_whole_ps(cost)
        self._rule = rule
        self._common_tokens = common_tokens

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`. Never more than where each row reads the text for itself."""
        each_s = self._each.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
        spared = self._spared_tokens(num_rows)
        if not spared:
            return each_s
        read = context_tokens - spared
        assert read * (num_rows - 1) >= spared, "a row that does not hold the text it shares"
        once_s = self._cost.shared_forward_s(
            model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens, read_tokens=read
        )
        return min(once_s, each_s)  # which is rounded by pieces of lines

    def _spared_tokens(self, num_rows: int) -> int:
        """Tokens held that a forward need not read."""
        if num_rows < self._rule.least_rows:
            return 0
        common = self._common_tokens()
        if self._rule.groups:
            return common
        return (num_rows - 1) * common if common >= self._rule.least_tokens else 0
