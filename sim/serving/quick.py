"""Operations as most are: everybody decodes, holds enough blocks and lags little, and all that comes up is recorded.

Then an operation is asked for, answered and learnt from in one go, and nothing is made that nobody reads. Whatever is
unusual (memory is short, somebody waits, a rule, a stop, a context beyond the record) is left to `Replica`, which
carries out the same operation from the same state.
"""

from typing import TypeAlias

from ...decoding.pool import Pool
from ...decoding.results import made
from ...decoding.rules import Exact
from ...decoding.steps import Outcome
from ...traces.workloads.arrival import PS_PER_S
from ..charges import later_held
from ..context_tables import WrittenChain
from .asked import AskedPolicy, Slot
from .replica import ReplicaBooks
from .replica_memory import ReplicaMemory
from .requests import ServedRequest
from .scheduler import Scheduler
from .world import ServedWorld

MOST_ROW = 64

# Who drafts, what it writes, how much of that, and tokens of its text and pending ones before.
Chain: TypeAlias = tuple[ServedRequest, WrittenChain, int, int]


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
        self._levels: list[list[int]] = [[level] * MOST_ROW for level in range(len(pool.members))]

    def draft(self, op: Slot, now_ps: int, until_ps: float) -> int:
        """Let a member draft if that ends before `until_ps`; returns when, or -1 where it is not as most are."""
        level, _, rows = op
        if level < self._first_level:
            return -1
        fed = self._fed(op)
        if fed is None:
            return -1
        chains, new_tokens, held_tokens, is_short = fed
        if new_tokens > self._budget or (is_short and not self._hold(level, rows, now_ps)):
            return -1
        lengths = [count for _, _, count, _ in chains]
        longest, num_rows, model, forward_ps = max(lengths), len(rows), self._names[level], self._forward_ps
        duration_ps = forward_ps(model, num_rows, new_tokens, held_tokens)
        all_new = new_tokens
        if longest > 1:
            if num_rows == 1:
                duration_ps += (longest - 1) * forward_ps(model, 1, 1, later_held(held_tokens + new_tokens, longest))
                all_new += longest - 1
            elif longest == min(lengths):
                middle = held_tokens + new_tokens + num_rows * (longest - 2) // 2
                duration_ps += (longest - 1) * forward_ps(model, num_rows, num_rows, middle)
                all_new += (longest - 1) * num_rows
            else:
                later_ps, later_new = self._later(model, chains)
                duration_ps += later_ps
                all_new += later_new
        end_ps = now_ps + duration_ps
        if end_ps >= until_ps:
            return -1
        duration_s = duration_ps / PS_PER_S
        load = self._asked.load
        load.now_s = end_ps / PS_PER_S
        load.batch[level], load.duration_s[level] = num_rows, duration_s
        load.num_forwards[level], load.new_tokens[level] = longest, all_new
        self._tell(level, chains, duration_s)
        busy = self._books.busy[level]
        busy[0] += duration_ps
        busy[1] += longest
        return end_ps

    def _fed(self, op: Slot) -> tuple[list[Chain], int, int, bool] | None:
        """What each row writes; tokens that all are fed first and hold; whether blocks are lacking. None: unusual."""
        level, _, rows = op
        target, new_tokens, held_tokens, is_short = self._target, 0, 0, False
        chains: list[Chain] = []
        for request in rows:
            step, asked, pending = request.step, request.asked, request.tokens
            if step.stop is not None or asked > MOST_ROW:  # type: ignore[union-attr]
                return None
            context = request.num_text + len(pending)
            room, most = request.room_held, context + asked + 1
            if most > room[target] or most > room[level]:
                is_short = True
            node = request.places[-1] if pending else request.place
            tables = request.tables
            chain = tables.chain(level, node, asked, request.eos) if node >= 0 and tables is not None else None
            held = request.cached[level]
            if chain is None or held == context:  # all was read: the first forward is none
                return None
            count = len(chain.tokens)
            new_tokens += context - held
            held_tokens += held
            chains.append((request, chain, count if count < asked else asked, context))
        return chains, new_tokens, held_tokens, is_short

    def _tell(self, level: int, chains: list[Chain], duration_s: float) -> None:
        """A draft has run."""
        asked = self._asked
        learn, ready, by_level, num_rows, idle = asked.learn, asked.ready, self._levels[level], len(chains), asked.idle
        for request, (tokens, places, kept, _), count, context in chains:
            if request.tokens:
                request.agreed = -1
            else:
                request.agreed = kept if kept < count else count
            if count < len(tokens):
                tokens, places = tokens[:count], places[:count]
            request.tokens += tokens
            request.places += places
            request.drafters += by_level[:count]
            request.judges += by_level[:count]
            request.cached[level] = context + count - 1
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

    def _later(self, model: str, chains: list[Chain]) -> tuple[int, int]:
        """Of the forwards of a draft after its first one, rows of different lengths: picoseconds, and tokens fed."""
        duration_ps = new_tokens = 0
        done = 1
        for length in sorted({count for _, _, count, _ in chains}):
            repeats = length - done
            if repeats:
                held = [context for _, _, count, context in chains if count >= length]
                rows = len(held)
                middle = sum(held) + rows * (2 * done + repeats - 3) // 2
                duration_ps += repeats * self._forward_ps(model, rows, rows, middle)
                new_tokens += repeats * rows
            done = length
        return duration_ps, new_tokens

    def judge(self, op: Slot, now_ps: int, until_ps: float) -> int:
        """Let the target judge if that ends before `until_ps`; returns when, or -1 where it is not as most are."""
        level, _, rows = op
        new_tokens = held_tokens = 0
        is_short = False
        for request in rows:
            rule = request.step.rule  # type: ignore[union-attr]
            if rule.__class__ is not Exact:
                return -1
            text, pending, held = request.num_text, len(request.tokens), request.cached[level]
            if held >= text:
                held = text - 1
            most = text + pending + 1
            if most > request.room_held[level]:
                is_short = True
            if (pending and request.agreed < 0) or request.place < 0 or request.has_ending:
                return -1
            new_tokens += text + pending - held
            held_tokens += held
        if new_tokens > self._budget or (is_short and not self._hold(level, rows, now_ps)):
            return -1
        num_rows = len(rows)
        duration_ps = self._forward_ps(self._names[level], num_rows, new_tokens, held_tokens)
        end_ps = now_ps + duration_ps
        if end_ps >= until_ps:
            return -1
        duration_s = duration_ps / PS_PER_S
        load = self._asked.load
        load.now_s = end_ps / PS_PER_S
        load.batch[level], load.duration_s[level] = num_rows, duration_s
        load.num_forwards[level], load.new_tokens[level] = 1, new_tokens
        self._tell_kept(rows, duration_s, end_ps)
        busy = self._books.busy[level]
        busy[0] += duration_ps
        busy[1] += 1
        return end_ps

    def _tell_kept(self, rows: list[ServedRequest], duration_s: float, end_ps: int) -> None:
        """The target has judged."""
        books, asked, num_rows = self._books, self._asked, len(rows)
        load, learn, ready, sums = asked.load, asked.learn, asked.ready, asked.judged_sums[self._target]
        sums[0] += num_rows
        gaps: dict[int, int] = {}
        is_reached = False
        for request in rows:
            outcome = request.kept_by_target(duration_s, num_rows)
            num_emitted, num_judged = outcome[6], outcome[3]
            gap_ps, request.noted_at_ps = end_ps - request.noted_at_ps, end_ps
            gaps[gap_ps] = gaps.get(gap_ps, 0) + 1
            if request.earlier:
                books.num_cycled += request.num_answer - max(request.num_noted, request.num_first)
            request.num_noted += num_emitted
            if request.depths and request.num_noted >= request.depths[0]:
                is_reached = True
            load.context_tokens += num_emitted
            books.num_emitted += num_emitted
            sums[1] += num_judged
            sums[2] += outcome[4]
            sums[3] += outcome[5]
            try:
                learn(outcome)
            except BaseException as error:  # a policy is foreign code
                raise asked.raised(outcome, error) from error
            if outcome[11]:
                asked.end(request)
            else:
                ready.append(request)
        if asked.idle:
            for request in rows:
                asked.idle.pop(request.request_id, None)
        for gap_ps, count in gaps.items():
            books.recorder.gaps(gap_ps, 0, 1, count)
        if is_reached:
            books.reached([request for request in rows if request.depths], end_ps)
        books.noted_ps = end_ps
