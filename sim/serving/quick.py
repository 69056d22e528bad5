"""Operations as most are: everybody decodes, holds enough blocks and lags little, and all that comes up is recorded.

Then an operation is asked for, answered and learnt from in one go, and nothing is made that nobody reads. Whatever is
unusual (memory is short, somebody waits, a rule, a stop, a context beyond the record) is left to `Replica`, which
carries out the same operation from the same state.
"""

from collections.abc import Sequence

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
        target, new_tokens, held_tokens, longest, shortest, is_short = self._target, 0, 0, 0, MOST_ROW, False
        chains: list[tuple[ServedRequest, WrittenChain, int, int]] = []
        for request in rows:
            step, asked, pending = request.step, request.asked, request.tokens
            if step.stop is not None or asked > MOST_ROW:  # type: ignore[union-attr]
                return -1
            context = request.num_text + len(pending)
            room, most = request.room_held, context + asked + 1
            if most > room[target] or most > room[level]:
                is_short = True
            node = request.places[-1] if pending else request.place
            tables = request.tables
            chain = tables.chain(level, node, asked, request.eos) if node >= 0 and tables is not None else None
            if chain is None:
                return -1
            count = len(chain.tokens)
            if count > asked:
                count = asked
            held = request.cached[level]
            new_tokens += context - held
            held_tokens += held
            if count > longest:
                longest = count
            if count < shortest:
                shortest = count
            chains.append((request, chain, count, context))
        if new_tokens > self._budget or (is_short and not self._hold(level, rows, now_ps)):
            return -1
        model, num_rows, forward_ps = self._names[level], len(rows), self._forward_ps
        duration_ps = forward_ps(model, num_rows, new_tokens, held_tokens)
        all_new = new_tokens
        if longest > 1:
            if num_rows == 1:
                duration_ps += (longest - 1) * forward_ps(model, 1, 1, later_held(held_tokens + new_tokens, longest))
                all_new += longest - 1
            elif longest == shortest:
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
        busy = self._books.busy[level]
        busy[0] += duration_ps
        busy[1] += longest
        asked_of = self._asked
        load, learn, ready, by_level = asked_of.load, asked_of.learn, asked_of.ready, self._levels[level]
        load.now_s = end_ps / PS_PER_S
        load.batch[level], load.duration_s[level] = num_rows, duration_s
        load.num_forwards[level], load.new_tokens[level] = longest, all_new
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
                raise asked_of.raised(outcome, error) from error
            ready.append(request)
        if asked_of.idle:
            for request in rows:
                asked_of.idle.pop(request.request_id, None)
        return end_ps

    def _hold(self, level: int, rows: list[ServedRequest], now_ps: int) -> bool:
        """Hold blocks for an operation; False: somebody would have to be put back for them."""
        if not self._scheduler.hold_all(level, rows):
            return False
        self._books.note_state(now_ps)
        self._asked.load.free_kv_share = self._memory.free_share
        return True

    def _later(self, model: str, chains: Sequence[tuple[ServedRequest, WrittenChain, int, int]]) -> tuple[int, int]:
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
        books, asked = self._books, self._asked
        busy = books.busy[level]
        busy[0] += duration_ps
        busy[1] += 1
        load, learn, ready, sums = asked.load, asked.learn, asked.ready, asked.judged_sums[level]
        load.now_s = end_ps / PS_PER_S
        load.batch[level], load.duration_s[level] = num_rows, duration_s
        load.num_forwards[level], load.new_tokens[level] = 1, new_tokens
        sums[0] += num_rows
        for request in rows:
            outcome = request.kept_by_target(duration_s, num_rows)
            num_emitted, num_judged = outcome[6], outcome[3]
            load.context_tokens += num_emitted
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
        books.note_outputs(rows, end_ps)
        return end_ps
