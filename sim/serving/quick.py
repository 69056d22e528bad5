"""Operations as most are: everybody decodes, holds enough blocks and lags little, and all that comes up is recorded.

Then an operation is asked for, answered and learnt from in one go, and nothing is made that nobody reads. Whatever is
unusual (memory is short, somebody waits, a rule, a stop, a context beyond the record) is left to `Replica`, which
carries out the same operation from the same state.
"""

from ...decoding.pool import Pool
from ...decoding.results import made
from ...decoding.rules import Exact
from ...decoding.steps import Outcome
from ...traces.workloads.arrival import PS_PER_S
from .asked import AskedPolicy, Slot
from .charges import later_forwards
from .replica import ReplicaBooks
from .replica_memory import ReplicaMemory
from .requests import ServedRequest
from .scheduler import Scheduler
from .world import ServedWorld

MOST_ROW = 64


class QuickSteps:
    """Mutates what `Replica` does: the requests, the policy's load, the books.

    Args:
        pool: the members.
        asked: the policy.
        world: of the replica.
        scheduler: of the replica.
        memory: of the replica.
        books: of the replica.
        budget: tokens that a forward is fed at most.

    """

    def __init__(
        self,
        *,
        pool: Pool,
        asked: AskedPolicy,
        world: ServedWorld,
        scheduler: Scheduler,
        memory: ReplicaMemory,
        books: ReplicaBooks,
        budget: int,
    ) -> None:
        self._names = pool.names
        self._target = pool.target_level
        self._first_level = world.answers.num_free
        self._asked = asked
        self._scheduler = scheduler
        self._memory = memory
        self._books = books
        self._budget = budget
        self._forward_ps = world.charges.forward_ps
        self._load = asked.load
        self._sums = asked.judged_sums[pool.target_level]
        self._levels: list[list[int]] = [[level] * MOST_ROW for level in range(len(pool.members))]

    def draft(self, op: Slot, now_ps: int, until_ps: float) -> int:
        """Let a member draft if that ends before `until_ps`; returns when, or -1 where it is not as most are."""
        level, _, rows = op
        if level < self._first_level:
            return -1
        target, new_tokens, held_tokens, is_short = self._target, 0, 0, False
        lengths: list[int] = []
        for request in rows:
            step, asked, pending, tables = request.step, request.asked, request.tokens, request.tables
            context, node = request.num_text, request.place
            if pending:
                context, node = context + len(pending), request.places[-1]
            held = request.cached[level]
            # Nothing of a member that has read all: its first forward is none.
            if step.stop is not None or asked > MOST_ROW or node < 0 or tables is None or held == context:  # type: ignore[union-attr]
                return -1
            room, most = request.room_held, context + asked + 1
            if most > room[target] or most > room[level]:
                is_short = True
            chain = tables.chains[level].get(node)
            if chain is None or (len(chain.tokens) < asked and not chain.ends):
                chain = tables.chain(level, node, asked, request.eos)
                if chain is None:
                    return -1
            request.written = chain
            count = len(chain.tokens)
            lengths.append(count if count < asked else asked)
            new_tokens += context - held
            held_tokens += held
        if new_tokens > self._budget or (is_short and not self._hold(level, rows, now_ps)):
            return -1
        num_rows, model, forward_ps = len(rows), self._names[level], self._forward_ps
        longest = lengths[0] if num_rows == 1 else max(lengths)
        duration_ps, all_new = forward_ps(model, num_rows, new_tokens, held_tokens), new_tokens
        if longest > 1:
            if num_rows == 1 or longest == min(lengths):
                middle = held_tokens + new_tokens + num_rows * (longest - 2) // 2
                duration_ps += (longest - 1) * forward_ps(model, num_rows, num_rows, middle)
                all_new += (longest - 1) * num_rows
            else:
                contexts = [request.num_text + len(request.tokens) for request in rows]
                drafts = list(zip(lengths, contexts, strict=True))
                for later_rows, repeats, each_ps in later_forwards(forward_ps, model, drafts):
                    duration_ps += repeats * each_ps
                    all_new += repeats * later_rows
        end_ps = now_ps + duration_ps
        if end_ps >= until_ps:
            return -1
        self._tell_drafted(level, rows, lengths, self._ran(level, num_rows, longest, all_new, duration_ps, end_ps))
        return end_ps

    def _ran(
        self, level: int, num_rows: int, num_forwards: int, new_tokens: int, duration_ps: int, end_ps: int
    ) -> float:
        """An operation has run: the policy's load and the books know of it; returns its seconds."""
        load, busy = self._load, self._books.busy[level]
        load.now_s = end_ps / PS_PER_S
        load.batch[level] = num_rows
        load.duration_s[level] = duration_s = duration_ps / PS_PER_S
        load.num_forwards[level] = num_forwards
        load.new_tokens[level] = new_tokens
        busy[0] += duration_ps
        busy[1] += num_forwards
        return duration_s

    def _tell_drafted(self, level: int, rows: list[ServedRequest], lengths: list[int], duration_s: float) -> None:
        asked, by_level, num_rows = self._asked, self._levels[level], len(rows)
        learn, ready, idle = asked.learn, asked.ready, asked.idle
        for request, count in zip(rows, lengths):  # noqa: B905 - to be strict costs as much as the rest
            written = request.written
            tokens, places, kept = written.tokens, written.places, written.kept
            pending = request.tokens
            if pending:
                request.agreed = -1
            else:
                request.agreed = kept if kept < count else count
            if count < len(tokens):
                tokens, places = tokens[:count], places[:count]
            pending += tokens
            request.places += places
            request.drafters += by_level[:count]
            request.judges += by_level[:count]
            request.cached[level] = request.num_text + len(pending) - 1
            request.last = outcome = made(
                Outcome, (request.request_id, request.step, count, 0, 0, 0, 0, None, (), duration_s, num_rows, False, 0)
            )
            try:
                learn(outcome)
            except BaseException as error:  # a policy is foreign code
                raise asked.raised(outcome, error) from error
            if idle:
                idle.pop(request.request_id, None)
            ready.append(request)

    def _hold(self, level: int, rows: list[ServedRequest], now_ps: int) -> bool:
        """Hold blocks for an operation; False: somebody would have to be put back for them."""
        if not self._scheduler.hold_all(level, rows):
            return False
        self._books.note_state(now_ps)
        self._asked.load.free_kv_share = self._memory.free_share
        return True

    def judge(self, op: Slot, now_ps: int, until_ps: float) -> int:
        """Let the target judge if that ends before `until_ps`; returns when, or -1 where it is not as most are."""
        level, _, rows = op
        new_tokens = held_tokens = 0
        is_short = False
        for request in rows:
            text, pending, held = request.num_text, len(request.tokens), request.cached[level]
            is_exact = request.step.rule.__class__ is Exact  # type: ignore[union-attr]
            if not is_exact or (pending and request.agreed < 0) or request.place < 0 or not request.is_plain:
                return -1
            if held >= text:
                held = text - 1
            if text + pending + 1 > request.room_held[level]:
                is_short = True
            new_tokens += text + pending - held
            held_tokens += held
        if new_tokens > self._budget or (is_short and not self._hold(level, rows, now_ps)):
            return -1
        duration_ps = self._forward_ps(self._names[level], len(rows), new_tokens, held_tokens)
        end_ps = now_ps + duration_ps
        if end_ps >= until_ps:
            return -1
        self._tell_judged(rows, self._ran(level, len(rows), 1, new_tokens, duration_ps, end_ps), end_ps)
        return end_ps

    def _tell_judged(self, rows: list[ServedRequest], duration_s: float, end_ps: int) -> None:
        books, asked, num_rows = self._books, self._asked, len(rows)
        learn, ready, idle, gaps = asked.learn, asked.ready, asked.idle, books.recorder.gaps
        count = latest_ps = 0
        is_reached = False
        for request in rows:
            gap_ps, request.noted_at_ps = end_ps - request.noted_at_ps, end_ps
            if gap_ps != latest_ps:
                if count:
                    gaps(latest_ps, 0, 1, count)
                latest_ps, count = gap_ps, 0
            count += 1
            outcome = self._kept(request, duration_s, num_rows)
            if request.depths and request.num_noted >= request.depths[0]:
                is_reached = True
            try:
                learn(outcome)
            except BaseException as error:  # a policy is foreign code
                raise asked.raised(outcome, error) from error
            if outcome.done:
                asked.end(request)
            else:
                ready.append(request)
            if idle:
                idle.pop(request.request_id, None)
        gaps(latest_ps, 0, 1, count)
        if is_reached:
            books.reached([request for request in rows if request.depths], end_ps)
        books.noted_ps = end_ps

    def _kept(self, request: ServedRequest, duration_s: float, num_rows: int) -> Outcome:
        """The target judges by exact match what one draft wrote, or nothing; as `judged`, of what `agreed` says."""
        target, tables, tokens, emitted, cached = (
            self._target, request.tables, request.tokens, request.emitted, request.cached,
        )  # fmt: skip
        place, limit, eos = request.place, request.num_text, request.eos
        num_judged, num_accepted, num_own = len(tokens), 0, 0
        tvd: tuple[float, ...] = ()
        ends, refused_at = False, None
        if num_judged:
            num_accepted, tvd, drafter = request.agreed, request.written.tvd, request.drafters[0]
            if num_accepted < num_judged:
                refused_at, tvd = num_accepted, tvd[: num_accepted + 1]
                tokens = tokens[:num_accepted]
            else:
                tvd = tvd[:num_judged]
            if num_accepted:
                emitted += tokens
                place = request.places[num_accepted - 1]
                ends = tokens[-1] in eos
            limit += num_accepted
            if cached[drafter] > limit:
                cached[drafter] = limit
            request.tokens, request.places, request.drafters, request.judges = [], [], [], []
        else:
            for level, held in enumerate(cached):
                if held > limit:
                    cached[level] = limit
        cached[target] = limit
        length, budget = len(emitted), request.budget
        request.num_judged = request.num_prompt + length
        if length < budget and not ends:
            assert tables is not None
            own = tables.next_token[target][place]
            place = tables.child[target][place]
            emitted.append(own)
            num_own = 1
            ends = own in eos or length + 1 >= budget
        else:
            ends = True
        request.place = place
        request.num_text = limit + num_own
        num_emitted = num_accepted + num_own
        books, sums = self._books, self._sums
        sums[0] += 1
        sums[1] += num_judged
        sums[2] += num_accepted
        sums[3] += num_own
        if request.earlier:
            books.num_cycled += request.num_answer - max(request.num_noted, request.num_first)
        request.num_noted += num_emitted
        self._load.context_tokens += num_emitted
        books.num_emitted += num_emitted
        # fmt: off
        request.last = outcome = made(Outcome, (
            request.request_id, request.step, 0, num_judged, num_accepted, num_own, num_emitted, refused_at, tvd,
            duration_s, num_rows, ends, 0,
        ))
        # fmt: on
        return request.going_on(outcome) if ends else outcome
