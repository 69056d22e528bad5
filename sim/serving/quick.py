"""The usual operation in one pass: all requests decode, blocks are there or can be taken, forwards are the cost.

Where memory is short, a request waits, or a cache lacks more than the budget, `Replica` carries out the same operation
from the same state. Any policy and any recording will do. What the recording has answered before is read back; asking
again would give the same.
"""

from typing import Any

from ...decoding.pool import Pool
from ...decoding.results import Drafted, Judged
from ...decoding.rules import Exact
from ...traces.workloads.arrival import PS_PER_S
from ..context_tables import ChainDraft
from .asked import AskedPolicy, Slot
from .charges import later_forwards
from .replica import ReplicaBooks
from .replica_memory import ReplicaMemory
from .requests import ServedRequest
from .scheduler import Scheduler
from .world import ServedWorld


class QuickSteps:
    """Mutates what `Replica` does: the requests, the policy's load, the books.

    Args:
        pool: the members.
        asked: the policy.
        world: of the replica, which is plain.
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
        self._drafted, self._judged = world.answers.drafted, world.answers.judged
        self._asked = asked
        self._scheduler = scheduler
        self._memory = memory
        self._books = books
        self._budget = budget
        self._forward_ps = world.charges.forward_ps
        self._load = asked.load

    def draft(self, op: Slot, now_ps: int, until_ps: float) -> int:
        """Let a member draft if that ends before `until_ps`; returns when, or -1 where it is not as most are."""
        level, _, rows = op
        if level < self._first_level:
            return -1
        target, new_tokens, held_tokens, is_short = self._target, 0, 0, False
        for request in rows:
            context, held, room = request.num_text + len(request.tokens), request.cached[level], request.room_held
            if held == context:  # of a member that has read all, the first forward is none
                return -1
            wanted = context + request.asked
            if wanted >= room[target] or wanted >= room[level]:
                is_short = True
            new_tokens += context - held
            held_tokens += held
        if new_tokens > self._budget or (is_short and not self._hold(level, rows, now_ps)):
            return -1
        drafted: list[Drafted] = []
        longest, shortest = 0, new_tokens + held_tokens + 1
        for request in rows:
            tables, places = request.tables, request.places
            step: Any = request.step
            found: Drafted | None = None
            if tables is not None and step.stop is None:
                chain = tables.chains[level].get(places[-1] if places else request.place)
                if chain is not None:
                    found = chain.drafts.get(request.asked)
            if found is None:
                found = self._drafted(request, step, level)
            drafted.append(found)
            count = len(found[0])
            if count > longest:
                longest = count
            if count < shortest:
                shortest = count
        if not shortest:
            return -1
        num_rows, model, forward_ps = len(rows), self._names[level], self._forward_ps
        duration_ps = forward_ps(model, num_rows, new_tokens, held_tokens)
        if longest > shortest:
            contexts = [request.num_text + len(request.tokens) for request in rows]
            drafts = list(zip([len(row[0]) for row in drafted], contexts, strict=True))
            for later_rows, repeats, each_ps in later_forwards(forward_ps, model, drafts):
                duration_ps += repeats * each_ps
                new_tokens += repeats * later_rows
        elif longest > 1:
            middle = held_tokens + new_tokens + num_rows * (longest - 2) // 2
            duration_ps += (longest - 1) * forward_ps(model, num_rows, num_rows, middle)
            new_tokens += (longest - 1) * num_rows
        end_ps = now_ps + duration_ps
        if end_ps >= until_ps:
            return -1
        duration_s = self._ran(level, num_rows, longest, new_tokens, duration_ps, end_ps)
        self._asked.drafted(level, rows, drafted, duration_s)
        return end_ps

    def judge(self, op: Slot, now_ps: int, until_ps: float) -> int:
        """Let the target judge if that ends before `until_ps`; returns when, or -1 where it is not as most are."""
        level, _, rows = op
        new_tokens = held_tokens = 0
        is_short = False
        for request in rows:
            text, held = request.num_text, request.cached[level]
            context = text + len(request.tokens)
            if held >= text:
                held = text - 1
            if context >= request.room_held[level]:
                is_short = True
            new_tokens += context - held
            held_tokens += held
        if new_tokens > self._budget or (is_short and not self._hold(level, rows, now_ps)):
            return -1
        judged: list[Judged] = []
        for request in rows:
            step: Any = request.step
            draft: Any = request.draft
            known = draft.__class__ is ChainDraft and step.rule.__class__ is Exact
            judged.append((draft.verdict if known else None) or self._judged(request, step, level))
        num_rows, books = len(rows), self._books
        duration_ps = self._forward_ps(self._names[level], num_rows, new_tokens, held_tokens)
        end_ps = now_ps + duration_ps
        if end_ps >= until_ps:
            return -1
        duration_s = self._ran(level, num_rows, 1, new_tokens, duration_ps, end_ps)
        reached = self._asked.wrote(rows, judged, duration_s, num_rows, books, end_ps)
        if reached:
            books.reached(reached, end_ps)
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

    def _hold(self, level: int, rows: list[ServedRequest], now_ps: int) -> bool:
        """Hold blocks for an operation; False: somebody would have to be put back for them."""
        if not self._scheduler.hold_all(level, rows):
            return False
        self._books.note_state(now_ps)
        self._asked.load.free_kv_share = self._memory.free_share
        return True
