"""Requests as numbers, where rounds are known: their queue, their batch and what they are charged.

Which replicas may be served from what was played once; of any other one can say why it goes step by step.

First blocks of cached texts where what has run may not be written down yet.

One request of a replica whose rounds are known: numbers in place of tokens.

What a replica of fixed rounds tells the recorder once: sums.

Which operation runs next: as `decoding.loop` groups steps, for requests whose rounds are known.

Who waits, who runs and who takes part in the next operation: as `engine.scheduler`, for requests without tokens.

Picoseconds of operations of requests whose rounds are known: those of `engine.charges`, from numbers alone.

How a member below the target reads what its cache lacks: `engine.catch_up`, for requests without tokens.
"""

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

from ...decoding.pool import Pool
from ...policies.about import decides_by_pending
from ...runs.recorder import ServingRecorder
from ...traces.workloads.arrival import Arrival
from ..cost.base import CostModel, DraftTerms
from ..played_round import FixedOp, PlayedRound
from ..rounds_once import FixedRounds
from .charges import MOST_KEPT, ForwardLines, PsLine
from .limits import EngineLimits
from .memory import MemberKv
from .replica import ReplicaSpec, ServedFrom
from .replica_memory import ReplicaMemory
from .requests import NEVER
from .round_shapes import RoundShapes
from .running import to_ps


def why_no_numbers(spec: ReplicaSpec) -> str:
    """Why a replica has to go step by step, in words; "" if its rounds may be played once."""
    if not decides_by_pending(spec.policy):
        return f"policy {spec.policy_name} does not say that pending tokens alone decide"
    if spec.cost.knows_operations:
        return f"cost {spec.cost.name} knows operations, not forwards alone"
    return ""


class SettledKeys(Container[int]):
    """Keys of first blocks. A prefill puts in a text's first block, but for a prompt that is shorter than that.

    Args:
        keys: those that are written down, as they are whenever one looks.
        settle: writes down what has run.

    Attributes:
        may_lag: whether a request has come whose prompt is shorter than a block.
    """

    def __init__(self, keys: Container[int], settle: Callable[[], None]) -> None:
        self._keys = keys
        self._settle = settle
        self.may_lag = False

    def __contains__(self, key: object) -> bool:
        """Whether there is such a text."""
        if self.may_lag:
            self._settle()
        return key in self._keys


class TabledRequest:
    """What `ServedSession` is, without tokens. Letter: L levels. Mutated by its replica.

    Attributes:
        arrival: what is wanted.
        serial: of the request in its run.
        depths: tokens of the answer that others of its session wait for, and that are not written yet.
        recorded_id: the request of the recording that it replays; "" until it is first looked at.
        most_tokens: that its text ever has, prompt and answer.
        num_text: tokens of prompt and answer so far.
        answer_tokens: of the recorded answer that it repeats; 0 until it is first looked at.
        most_answer: tokens that the recording allowed that answer.
        position: tokens of the present segment.
        budget: tokens that the present segment may have.
        cached: `[L]` tokens of the text that each member's cache holds.
        room_held: `[L]` tokens that its blocks of each member have room for.
        full_at: `[L]` tokens with which a further block may enter the member's prefix cache.
        order: number of its latest admission; NEVER while it waits.
        scheduled: whether it was ever admitted.
        round: that it is in; None between two.
        step: index of its next operation in the round.
        num_noted: tokens of the answer that were written down.
        out_at_ps: when its latest tokens came out; NEVER before the first.
    """

    __slots__ = (
        "answer_tokens", "arrival", "budget", "cached", "depths", "full_at", "most_answer", "most_tokens", "num_noted",
        "num_text", "order", "out_at_ps", "position", "recorded_id", "room_held", "round", "scheduled", "serial",
        "step",
    )  # fmt: skip

    def __init__(self, arrival: Arrival, serial: int, num_levels: int) -> None:
        self.arrival = arrival
        self.serial = serial
        self.depths = arrival.depths
        self.recorded_id = ""
        self.num_text = arrival.prompt_tokens
        self.most_tokens = arrival.prompt_tokens + arrival.output_tokens
        self.answer_tokens = self.most_answer = 0
        self.position = self.budget = self.num_noted = 0
        self.cached = [0] * num_levels
        self.room_held = [0] * num_levels
        self.full_at = [0] * num_levels
        self.order = NEVER
        self.scheduled = False
        self.round: PlayedRound | None = None
        self.step = 0
        self.out_at_ps = NEVER

    def replays(self, recorded_id: str, answer_tokens: int, most_answer: int) -> None:
        """Stand at the start of a recorded answer."""
        self.recorded_id = recorded_id
        self.answer_tokens = answer_tokens
        self.most_answer = most_answer
        self.budget = min(most_answer, self.arrival.output_tokens)

    @property
    def op(self) -> FixedOp:
        """Its next operation; it must be in a round."""
        assert self.round is not None
        return self.round.ops[self.step]

    @property
    def num_answer(self) -> int:
        """Tokens of the answer so far."""
        return self.num_text - self.arrival.prompt_tokens

    @property
    def prefill_left(self) -> int:
        """Tokens of the text that the target has not read."""
        return self.num_text - self.cached[-1]

    def draft(self, op: FixedOp, *, keeps: bool) -> None:
        """A draft has run; `keeps`: by a member with a cache."""
        self.step += 1
        if keeps and op.drafted:
            self.cached[op.level] = self.num_text + op.pending + op.drafted - 1

    def judge(self, op: FixedOp) -> None:
        """A member below the target has judged."""
        self.step += 1
        self._roll_back(op.level, self.num_text + op.first + op.accepted)

    def commit(self, accepted: int, tokens: int, *, ends: bool) -> bool:
        """The target has judged, and so many tokens come out; returns whether the request is done."""
        self._roll_back(-1, self.num_text + accepted)
        self.round = None
        self.num_text += tokens
        self.position += tokens
        if not ends:
            return False
        self.position = 0
        self.budget = min(self.most_answer, self.most_tokens - self.num_text)
        return self.num_text >= self.most_tokens

    def commit_first(self) -> bool:
        """The prefill is done, which writes a token; returns whether the request is."""
        return self.commit(0, 1, ends=self.position + 1 >= min(self.answer_tokens, self.budget))

    def put_back(self) -> None:
        """It waits again, and no cache holds anything of it."""
        self.order = NEVER
        self.round = None
        for tokens in (self.cached, self.room_held, self.full_at):
            tokens[:] = [0] * len(tokens)

    def _roll_back(self, level: int, limit: int) -> None:
        self.cached = [min(held, limit) for held in self.cached]
        self.cached[level] = limit


class TabledBooks:
    """Letter: L levels.

    Args:
        index: of the replica.
        recorder: of the run.
        members: `[L]` memory, None where there is none.

    Attributes:
        num_emitted, num_cycled: tokens that came out, and those after the first pass of a recorded answer.
        num_modelled: decisions that were modelled rather than replayed.
    """

    def __init__(self, index: int, recorder: ServingRecorder, members: Sequence[MemberKv | None]) -> None:
        self._index = index
        self._recorder = recorder
        self._members = members
        self._busy = [[0, 0] for _ in members]
        self._judged = [[0, 0, 0, 0] for _ in members]
        self._grown_ps = [0] * len(members)
        self._most = [0] * len(members)
        self._played: Counter[int] = Counter()
        self.num_emitted = self.num_cycled = self.num_modelled = 0

    def ran(self, level: int, duration_ps: int, forwards: int) -> None:
        """A member ran."""
        if forwards:
            sums = self._busy[level]
            sums[0] += duration_ps
            sums[1] += forwards

    def cut(self, level: int, start_ps: int, end_ps: int) -> None:
        """A member runs when the run ends, and has from `start_ps` on until `end_ps`; none of its forwards is over."""
        self._busy[level][0] += max(end_ps - start_ps, 0)

    def judged(self, level: int, drafted: int, accepted: int, own: int, rows: int) -> None:
        """A member judged."""
        sums = self._judged[level]
        sums[0] += drafted
        sums[1] += accepted
        sums[2] += own
        sums[3] += rows

    def played(self, shapes: Iterable[int]) -> None:
        """Rounds of these shapes are over."""
        self._played.update(shapes)

    def grew(self, level: int, block_ps: int, most_blocks: int) -> None:
        """Used blocks rose between states; see `ReplicaStates.grew`."""
        self._grown_ps[level] += block_ps
        self._most[level] = max(self._most[level], most_blocks)

    def single_gaps(self, gaps_ps: Sequence[int], rows: int) -> None:
        """See `ServingRecorder.single_gaps`."""
        self._recorder.single_gaps(gaps_ps, rows)

    def came_out(self, requests: Iterable[TabledRequest], at_ps: int) -> None:
        """Tokens of requests are out."""
        recorder = self._recorder
        gaps: Counter[int] = Counter()
        for request in requests:
            if request.out_at_ps == NEVER:
                recorder.first_token(request.serial, at_ps)
            else:
                gaps[at_ps - request.out_at_ps] += 1
            request.out_at_ps = at_ps
            self.note_tokens(request)
        for gap_ps, rows in gaps.items():
            recorder.gaps(gap_ps, 0, 1, rows)

    def note_tokens(self, request: TabledRequest) -> None:
        """Count the tokens of a request that are new."""
        noted, tokens = request.num_noted, request.num_answer
        request.num_noted = tokens
        self.num_emitted += tokens - noted
        if tokens > request.answer_tokens:
            self.num_cycled += tokens - max(noted, request.answer_tokens)

    def close(self, shapes: RoundShapes, requests: Iterable[TabledRequest]) -> None:
        """Tell the sums, and the answers of requests that have not ended."""
        recorder, index = self._recorder, self._index
        for number, times in self._played.items():
            for op in shapes.shapes[number].round.ops:
                self.num_modelled += times * op.modelled
                if not op.drafts:
                    self.judged(op.level, times * op.judged, times * op.accepted, times * op.own, times)
        self._played.clear()
        for level, kv in enumerate(self._members):
            if any(self._busy[level]):
                recorder.busy(index, level, *self._busy[level])
            if self._judged[level][3]:
                recorder.judged(level, *self._judged[level])
            if kv is not None:
                hits = kv.hits
                asked, found = (hits.asked_blocks, hits.asked_tokens), (hits.found_blocks, hits.found_tokens)
                recorder.looked_up(index, level, asked, found)
                recorder.states_of(index).grew(level, self._grown_ps[level], self._most[level])
        for request in requests:
            if request.num_answer:
                recorder.emitted(request.serial, request.num_answer)


class RequestsOp(NamedTuple):
    """An operation of several requests; each has it as its next one.

    Attributes:
        level: of the member that runs.
        drafts: whether it drafts; else it judges.
        requests: in their order.
    """

    level: int
    drafts: bool
    requests: list[TabledRequest]


class RequestQueue:
    """Requests between two operations, and operations that others may still join.

    Args:
        rounds: of the policy.
    """

    def __init__(self, rounds: FixedRounds) -> None:
        self._rounds = rounds
        self._ready: list[TabledRequest] = []
        self._waiting: dict[tuple[int, bool], list[TabledRequest]] = {}

    @property
    def is_between_rounds(self) -> bool:
        """Whether everybody is about to begin a round."""
        return not self._waiting and all(request.round is None for request in self._ready)

    def take_all(self) -> list[TabledRequest]:
        """Those that are ready, in their order; they are with whoever asks from now on."""
        ready, self._ready = self._ready, []
        return ready

    def waits(self, request: TabledRequest) -> None:
        """A request has run all but the last operation of its round, after others that have."""
        op = request.op
        self._waiting.setdefault((op.level, not op.drafts), []).append(request)

    def goes_on(self, request: TabledRequest) -> None:
        """A request is ready for its next operation, after all that are."""
        self._ready.append(request)

    def withdraw(self, request: TabledRequest) -> None:
        """A request is put back; its round is dropped."""
        self._ready = [other for other in self._ready if other is not request]
        for kind, requests in list(self._waiting.items()):
            left = [other for other in requests if other is not request]
            if left:
                self._waiting[kind] = left
            else:
                del self._waiting[kind]

    def next_op(self) -> RequestsOp | None:
        """The smallest member first, and drafts before it judges; None if nobody is there."""
        waiting = self._waiting
        for request in self._ready:
            found = request.round
            if found is None:
                request.round = found = self._rounds.round(
                    request.arrival.request_id,
                    request.recorded_id,
                    request.position,
                    request.budget - request.position,
                )
                request.step = 0
            op = found.ops[request.step]
            kind = op.level, not op.drafts
            if kind in waiting:
                waiting[kind].append(request)
            else:
                waiting[kind] = [request]
        self._ready.clear()
        if not waiting:
            return None
        level, judges = kind = min(waiting)
        return RequestsOp(level, not judges, waiting.pop(kind))


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


class TabledCharges:
    """Charges operations.

    Args:
        cost: seconds; not one that knows operations.
        pool: its members in level order.
        num_free: model-free members, which come first in the pool.

    Attributes:
        names: of the members.
        num_free: see above.
        lookup_ps: of one prompt lookup.
        known: the latest line that was asked for, by level, rows and new tokens; not of all that ever were.
        drafts_are_forwards: whether a draft costs its forwards and nothing else.
    """

    def __init__(self, cost: CostModel, pool: Pool, num_free: int) -> None:
        self._cost = cost
        self.names = pool.names
        self.num_free = num_free
        self._target = pool.target_level
        self.lookup_ps = to_ps(cost.lookup_s)
        self.drafts_are_forwards = all(cost.draft_terms(name) is None for name in pool.names[num_free:])
        self._lines = None if cost.unlined() else ForwardLines(cost)
        self.known: dict[tuple[int, int, int], PsLine] = {}

    @property
    def is_lined(self) -> bool:
        """Whether the cost has lines."""
        return self._lines is not None

    def forward(self, level: int, num_rows: int, new_tokens: int, context_tokens: int) -> int:
        """Of one forward; arguments and errors as of `CostModel.forward_s`."""
        if self._lines is None:
            # fmt: off
            return to_ps(self._cost.forward_s(
                self.names[level], num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens,
            ))
            # fmt: on
        return self.line(level, num_rows, new_tokens, context_tokens).ps(context_tokens)

    def line(self, level: int, num_rows: int, new_tokens: int, context_tokens: int) -> PsLine:
        """The line that a forward lies on, of a cost that has lines."""
        key = level, num_rows, new_tokens
        known = self.known.get(key)
        if known is not None and known.start <= context_tokens < known.end:
            return known
        assert self._lines is not None
        found = self._lines.line(self.names[level], num_rows, new_tokens, context_tokens)
        if len(self.known) >= MOST_KEPT:
            self.known.clear()
        self.known[key] = found
        return found

    def read(self, level: int, chunks: Sequence[tuple[TabledRequest, int]]) -> int:
        """Of a forward that feeds each request so many tokens, and judges nothing."""
        new_tokens = sum(tokens for _, tokens in chunks)
        held = sum(request.cached[level] for request, _ in chunks)
        return self.forward(level, len(chunks), new_tokens, held)

    def judged(self, op: RequestsOp) -> int:
        """Of the one forward of a verification below the target."""
        level, new_tokens, held = op.level, 0, 0
        for request in op.requests:
            step = request.op
            before = min(request.cached[level], request.num_text + step.first - 1)
            new_tokens += request.num_text + step.pending - before
            held += before
        return self.forward(level, len(op.requests), new_tokens, held)

    def stepped(self, rows: Sequence[TabledRequest], reading: Sequence[tuple[TabledRequest, int]]) -> int:
        """Of a step of the target: verifications, and requests that are fed so many tokens of their texts."""
        new_tokens = held = 0
        for request in rows:
            before = min(request.cached[-1], request.num_text - 1)
            new_tokens += request.num_text + request.op.pending - before
            held += before
        for request, tokens in reading:
            new_tokens += tokens
            held += request.cached[-1]
        return self.forward(self._target, len(rows) + len(reading), new_tokens, held)

    def drafted(self, op: RequestsOp) -> tuple[int, int]:
        """Of a draft: (picoseconds, forwards)."""
        if op.level < self.num_free:
            return len(op.requests) * self.lookup_ps, 0
        terms = self._cost.draft_terms(self.names[op.level])
        if terms is None:
            return self._tokens_drafted(op)
        if terms.per_token_s is not None:
            lengths = [request.op.drafted for request in op.requests]
            return to_ps(terms.seconds(max(lengths))), 1 if any(lengths) else 0
        if terms.block is not None:
            return self._block_drafted(op, terms)
        duration_ps, forwards = self._tokens_drafted(op)
        return to_ps(terms.per_round_s) + duration_ps, forwards

    def _block_drafted(self, op: RequestsOp, terms: DraftTerms) -> tuple[int, int]:
        """The one forward of a whole draft."""
        level, block, fed = op.level, terms.block, []
        assert block is not None
        for request in op.requests:
            step, held = request.op, request.cached[level]
            if step.drafted:
                terms.check_fits(self.names[level], step.drafted)
                fed.append(block.forward(request.num_text + step.pending - held, held, step.drafted))
        if not fed:
            return 0, 0
        return self.forward(level, len(fed), sum(new for new, _ in fed), sum(held for _, held in fed)), 1

    def _tokens_drafted(self, op: RequestsOp) -> tuple[int, int]:
        """One forward per token: the first also catches up, later ones run while any row still drafts."""
        level, new_tokens, held = op.level, 0, 0
        running: list[tuple[int, int]] = []  # length of the draft, tokens before it
        for request in op.requests:
            step = request.op
            if step.drafted:
                context = request.num_text + step.pending
                new_tokens += context - request.cached[level]
                held += request.cached[level]
                running.append((step.drafted, context))
        if not running:
            return 0, 0
        duration_ps = self.forward(level, len(running), new_tokens, held)
        return duration_ps + self.later(level, running), max(running)[0]

    def later(self, level: int, running: list[tuple[int, int]]) -> int:
        """Of the forwards of a draft after its first one.

        Args:
            level: of the drafter.
            running: length of each row's draft, >= 1, and tokens of its text and pending ones before it.
        """
        duration_ps, done = 0, 1
        for length in sorted({length for length, _ in running}):
            repeats = length - done
            if repeats:
                held = [context for drafted, context in running if drafted >= length]
                rows = len(held)
                middle = sum(held) + rows * (2 * done + repeats - 3) // 2
                duration_ps += repeats * self.forward(level, rows, rows, middle)
            done = length
        return duration_ps


def within_budget(op: RequestsOp, budget: int) -> tuple[RequestsOp, RequestsOp | None]:
    """An operation whose rows, all caught up, are fed at most `budget` tokens, or one row; and one with the others."""
    left, count = budget, 0
    for request in op.requests:
        left -= _least(request)
        if left < 0 and count:
            break
        count += 1
    if count == len(op.requests):
        return op, None
    return op._replace(requests=op.requests[:count]), op._replace(requests=op.requests[count:])


def catch_up(charges: TabledCharges, op: RequestsOp, budget: int) -> tuple[int, int]:
    """Run forwards of at most `budget` tokens until what the rows of an operation are still to be fed is no more.

    Requests learn what their caches hold now. Rows are served in their order.

    Returns:
        Picoseconds, and forwards.
    """
    level = op.level
    spare = {request: _spare(request, level) for request in op.requests}
    total = sum(spare.values()) + sum(_least(request) for request in op.requests)
    duration_ps = num_forwards = 0
    while total > budget and any(spare.values()):
        left, chunks = budget, []
        for request in op.requests:
            chunk = min(spare[request], left)
            if chunk:
                chunks.append((request, chunk))
                left -= chunk
        duration_ps += charges.read(level, chunks)
        for request, chunk in chunks:
            request.cached[level] += chunk
            spare[request] -= chunk
        num_forwards += 1
        total -= budget - left
    return duration_ps, num_forwards


def _least(request: TabledRequest) -> int:
    """Tokens that a caught up row is fed."""
    step = request.op
    return 1 if step.drafts else step.judged + 1


def _spare(request: TabledRequest, level: int) -> int:
    """Tokens that may be read before."""
    step = request.op
    needed = request.num_text + (step.pending if step.drafts else step.first) - 1
    return max(needed - request.cached[level], 0)
