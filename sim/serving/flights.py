"""A fast path of the engine: cycles of policies that decide only by pending tokens, as numbers.

The rounds of such requests are known (`FlownRounds`), so a cycle of the batch is sums over its rows, and of the target
alone many cycles are one sum. Requests remain **in flight** from one cycle to the next, and are updated when they land:
at their end, when others wait for their tokens, and where the batch must run step by step for a while, since memory is
short or a round is not known. `Replica` then carries out the same operations from the same state; without this module
only speed would be lost.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ...decoding.pool import Pool
from ...decoding.results import Judged
from ...traces.workloads.arrival import PS_PER_S
from ..rounds_answers import ON_TRUNK
from ..rounds_once import FixedRounds
from .asked import AskedPolicy
from .charges import to_s
from .flown import LACKS_MUCH, MOST_ROWS, Cycle, Cycles, FlownRounds, FlownRow, sized, steps_before
from .replica import ReplicaBooks
from .replica_memory import ReplicaMemory
from .requests import NEVER, READS, AnswerLengths, ServedRequest
from .scheduler import Scheduler
from .world import ServedWorld

MOST_NODES = 1 << 18
MOST_TEXT = 1 << 62

NO_PATTERN = -2


class Operation(NamedTuple):
    """A running operation: `num_forwards` of the member at `level`."""

    level: int
    num_forwards: int
    start_ps: int
    end_ps: int


class UnderWay:
    """A cycle carried out operation by operation.

    Attributes:
        cycle: the cycle.
        more: tokens of its texts beyond the cycle's start.
        place: index of the operation that runs, or runs next.
        is_short: whether rows need blocks for further operations.
        ending, chunks: prefills in the target's step, that end with it and that do not.
        judged: results of those that end.
    """

    __slots__ = ("chunks", "cycle", "ending", "is_short", "judged", "more", "place")

    def __init__(self, cycle: Cycle, more: int, *, is_short: bool) -> None:
        self.cycle, self.more, self.is_short = cycle, more, is_short
        self.place = 0
        self.ending: list[ServedRequest] = []
        self.chunks: list[ServedRequest] = []
        self.judged: Sequence[Judged] = ()


class Flights:
    """Flies the requests of one replica.

    Attributes:
        going: the running operation.
        has_flown: whether any cycle was carried out here.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        rounds: FixedRounds,
        asked: AskedPolicy,
        scheduler: Scheduler,
        memory: ReplicaMemory,
        books: ReplicaBooks,
        world: ServedWorld,
        budget: int,
        lengths: AnswerLengths,
        runs_alone: bool,
    ) -> None:
        charges, self._answers = world.charges, world.answers
        self._names = pool.names
        self._target = pool.target_level
        self._rounds = FlownRounds(pool, rounds, world.answers.num_free)
        self._asked, self._scheduler, self._memory, self._books = asked, scheduler, memory, books
        self._forward_ps = charges.forward_ps
        self._num_free = world.answers.num_free
        self._budget = budget
        self._lengths, self._runs_alone = lengths, runs_alone
        self._num_even = 0
        self._caching = [level for level, kv in enumerate(memory.members) if kv is not None and kv.limits.prefix_cache]
        self._sizes = [kv.limits.block_tokens if kv is not None else 1 for kv in memory.members]
        self._cycles = Cycles(pool, charges, self._num_free, budget, books.busy)
        self.going: Operation | None = None
        self.has_flown = False
        self._under_way: UnderWay | None = None
        self._rows: list[FlownRow] = []
        self._odd: list[FlownRow] = []  # whose latest token is of another instant than the others'
        self._gaps: list[int] = []  # between tokens of all rows, not recorded yet
        self._out_ps = 0  # instant of the latest tokens of all others
        self._is_unfit = False  # a row must run step by step
        self._reached: list[ServedRequest] = []  # in the latest cycle, with tokens that others wait for

    @property
    def is_under_way(self) -> bool:
        """Whether a cycle has begun operation by operation, and not ended."""
        return self._under_way is not None

    def run(self, now_ps: int, until_ps: float) -> int | None:
        """Carry out what ends before `until_ps`, at most until a request ends or reaches tokens that others wait for.

        Returns:
            When the last of it ended; what ends later is `going`. None: nothing has run, all have landed, and the batch
                continues step by step.
        """
        way = self._under_way
        if way is None:
            if not self._taken_up(now_ps):
                self.land()
                return None
            if self._rows and not self._odd and self._scheduler.only_decodes:
                flies = self._added_up if self._runs_alone else self._flown
                end_ps = flies(now_ps, until_ps)
                if self._reached:
                    self._books.reached(self._reached, now_ps if end_ps is None else end_ps)
                    self._reached = []
                if end_ps is not None:
                    return end_ps
            way = self._under_way = self._begun()
            if way is None:
                self.land()
                return None
        while self._under_way is not None:
            if not self._planned(way, now_ps):
                self._under_way = None
                self.land()
                return None
            assert self.going is not None
            if self.going.end_ps >= until_ps:
                break
            now_ps = self.going.end_ps
            self.commit()
        return now_ps

    # -- requests in flight

    def _taken_up(self, now_ps: int) -> bool:
        """Add ready requests to the flight; False: one of them cannot fly."""
        if self._is_unfit:
            self._is_unfit = False
            return False
        asked, rounds = self._asked, self._rounds
        if not asked.ready and self._rows:
            return True
        if len(rounds.nodes) > MOST_NODES:
            self.land()
            self._tell_rounds()
            rounds.forget()
        if not asked.ready:
            return not self._scheduler.only_decodes
        if len(self._rows) + len(asked.ready) >= MOST_ROWS:
            return False
        rows = []
        for request in asked.ready:
            if request.place < 0:
                return False
            row = rounds.row(request)
            if self._runs_alone:
                if request.num_text - request.cached[self._target] != 1:
                    return False
            else:
                node = rounds.begun(row)
                if node is None:
                    return False
                row.node = node
            row.held, row.until = self._held(request), self._until(request)
            rows.append(row)
        self._flush()
        if not self._rows:
            self._out_ps = now_ps
        self._odd += [row for row in rows if row.request.noted_at_ps != self._out_ps]
        self._rows += rows
        self.has_flown = True
        asked.ready = []
        return True

    def _held(self, request: ServedRequest) -> int:
        room = request.room_held
        held = min([room[level] for level in self._rounds.levels])
        return held if held < request.most_tokens else MOST_TEXT

    def _until(self, request: ServedRequest) -> int:
        """Length of the text at which it matters to others: a block enters a prefix cache, or its session continues."""
        until, arrival = MOST_TEXT, request.arrival
        if self._caching and (arrival.blocks or arrival.answer or request.was_preempted):
            # Others may hit blocks of the prompt, which drafters read when they first draft, and of answers with ids.
            # The rest enters when the request lands. The newest token is in no cache.
            found = MOST_TEXT if arrival.answer or request.was_preempted else arrival.prompt_tokens
            full_at = [request.full_at[level] for level in self._caching if level in self._rounds.levels]
            until = min([tokens + 1 for tokens in full_at if tokens <= found], default=MOST_TEXT)
        return min(until, arrival.prompt_tokens + request.depths[0]) if request.depths else until

    # -- whole cycles

    def _next(self) -> tuple[Cycle | None, int, bool]:
        """The next cycle, tokens of its texts beyond its start, and whether a row lacks blocks for it.

        None: an operation might be fed more than the budget.
        """
        rows = self._rows
        if not rows:
            return Cycle(0, 1, [(self._target, 0, 0, 1)]), 0, False
        if self._runs_alone:
            if len(rows) > self._budget:
                return None, 0, False
            is_short = any(row.text >= row.held for row in rows)
            texts = sum([row.text for row in rows])
            end, each_ps, slope = self._cycles.even(len(rows), texts)
            return Cycle(texts, end, [(self._target, each_ps, slope, 1)]), 0, is_short
        key, texts, is_mixed, is_short = sized(rows)
        cycle = self._cycles.mixed(rows, texts) if is_mixed else self._cycles.known(key, rows, texts)
        return cycle, 0 if cycle is None else texts - cycle.start, is_short

    def _flown(self, now_ps: int, until_ps: float) -> int | None:
        """Run whole cycles that end before `until_ps`, until a row needs attention; returns when the last one ended.

        None: none has run.
        """
        rows, gaps, cycles, turned = self._rows, self._gaps, self._cycles.by_key, self._turned
        key, texts, is_mixed, is_short = sized(rows)
        end_ps: int | None = None
        while True:
            cycle = None if is_mixed else cycles.get(key)
            if cycle is None or not cycle.start <= texts < cycle.end:
                cycle = self._cycles.mixed(rows, texts) if is_mixed else self._cycles.known(key, rows, texts)
            if cycle is None:
                break
            more = texts - cycle.start
            took_ps = cycle.ps + cycle.slope * more
            if now_ps + took_ps >= until_ps or (is_short and not self._has_room()):
                break
            if is_short:
                self._hold_all(cycle, more, now_ps)
            if is_mixed:
                self._cycles.tell_once(cycle.ops)
                rows.sort(key=_last_place)  # the order in which they reach the target
            else:
                cycle.times += 1
                cycle.tokens += more
            end_ps = now_ps = now_ps + took_ps
            gaps.append(took_ps)
            # Each row advances to its next round, whose figures are added up for the next cycle.
            looked_at: list[FlownRow] = []
            key = texts = 0
            is_mixed = is_short = False
            pattern = NO_PATTERN
            for row in rows:
                node = row.node
                node.times += 1
                row.text = text = row.text + node.committed
                after = node.after
                if after is None or text + after.needs > row.limit or text >= row.until:
                    if not turned(row):
                        looked_at.append(row)
                        continue
                    after = row.node
                else:
                    row.node = after
                key += after.sums
                texts += text
                if after.pattern != pattern:
                    is_mixed = pattern != NO_PATTERN or after.pattern == LACKS_MUCH
                    pattern = after.pattern
                if text + after.wanted > row.held:
                    is_short = True
            if looked_at:
                self._out_ps = now_ps
                if self._looked_at(looked_at) or self._is_unfit:
                    break
                key, texts, is_mixed, is_short = sized(rows)
        if gaps:
            self._out_ps = now_ps
        return end_ps

    def _turned(self, row: FlownRow) -> bool:
        """Find the next round of a row, perhaps of another segment; False: the row needs attention."""
        node, text = row.node, row.text
        row.lack = node.shape.lack
        if node.ends:
            request = row.request
            left = request.most_tokens - text
            if left <= 0:
                return False
            if not row.num_ends:
                row.length = text - request.num_text + len(request.emitted)
            row.num_ends += 1
            row.limit = text + min(request.whole_budget, left)
        after = node.after
        if after is None or text + after.needs > row.limit:
            after = self._rounds.node_at(row, node.key)
            if after is None:
                self._is_unfit = True
                return False
            if not node.ends and after.needs <= row.limit - text:
                node.after = after
        row.node = after
        return text < row.until

    def _looked_at(self, rows: list[FlownRow]) -> bool:
        """Handle rows that need attention; returns whether an answer has ended, or has tokens that others wait for."""
        ended = False
        for row in rows:
            request = row.request
            reached = request.depths and row.text >= request.arrival.prompt_tokens + request.depths[0]
            if not reached and row.text < request.most_tokens and not self._is_unfit:
                self._note_caches(row)
                self._memory.commit(request, row.text)
                row.until = self._until(request)
                continue
            self._flush()
            self._landed(row)
            self._memory.commit(request)
            if reached:
                self._reached.append(request)
            if row.text >= request.most_tokens:
                self._asked.end(request)
                ended = True
                continue
            row.until = self._until(request)
            if not self._runs_alone:
                node = self._rounds.begun(row)
                if node is None:
                    self._is_unfit = True
                else:
                    row.node = node
        if ended:
            self._rows = [row for row in self._rows if row.text < row.request.most_tokens]
        if ended or self._reached:
            return True
        self._books.note_state(self._out_ps)
        return False

    # -- operation by operation

    def _begun(self) -> UnderWay | None:
        """Begin the next cycle; None: memory may be short for it, or the budget."""
        cycle, more, is_short = self._next()
        if cycle is None or (is_short and not self._has_room()):
            return None
        return UnderWay(cycle, more, is_short=is_short)

    def _planned(self, way: UnderWay, now_ps: int) -> bool:
        """Make the next operation `going`; False: no request is left in it."""
        ops, place = way.cycle.ops, way.place
        level, ps, slope, num_forwards = ops[place]
        took_ps, last = ps + slope * way.more, len(ops) - 1
        if way.is_short:
            way.is_short = self._hold(place, last, None)
        if place == last and not self._scheduler.only_decodes:
            num_rows = len(self._rows)
            new, held = self._fed()
            chunks = self._scheduler.filled(self._budget - new, now_ps, decoded=bool(self._rows))
            if any(row.request.order == NEVER or row.request.chunk for row in self._rows):
                self._leave(way)
                new, held = self._fed()
            if chunks or num_rows != len(self._rows):
                if not (chunks or self._rows):
                    return False
                took_ps = self._filled(way, chunks, new, held)
            elif not num_rows:
                return False
            if self._memory.host is not None:
                took_ps += self._memory.host.take_load_ps(now_ps)
        self._books.note_state(now_ps)
        self.going = Operation(level, num_forwards, now_ps, now_ps + took_ps)
        return True

    def _fed(self) -> tuple[int, int]:
        """Tokens fed to the target and held in its cache, of all rows."""
        if self._runs_alone:
            count = len(self._rows)
            return count, sum([row.text for row in self._rows]) - count
        new = held = 0
        for row in self._rows:
            slot = row.node.shape.slots[-1]
            new += slot.new
            held += slot.held + row.text
        return new, held

    def _filled(self, way: UnderWay, chunks: list[ServedRequest], new: int, held: int) -> int:
        """Add prefills to the target's step; returns its picoseconds."""
        target = self._target
        for request in chunks:
            request.chunk_level, request.step = target, READS
            new += request.chunk
            held += request.cached[target]
            (way.ending if request.chunk == request.prefill_left else way.chunks).append(request)
        way.judged = [self._answers.judged(request, READS, target) for request in way.ending]
        return self._forward_ps(self._names[target], len(self._rows) + len(chunks), new, held)

    def _leave(self, way: UnderWay) -> None:
        """Remove preempted rows; records their operations below the target."""
        left = [row for row in self._rows if row.request.order == NEVER or row.request.chunk]
        for row in left:
            self._tell_begun(row, way.place)
        self._rows = [row for row in self._rows if row not in left]
        self._odd = [row for row in self._odd if row not in left]

    def commit(self) -> None:
        """Apply the operation `going`."""
        going, way = self.going, self._under_way
        assert going is not None
        assert way is not None
        self.going = None
        level, num_forwards, start_ps, end_ps = going
        if num_forwards:
            busy = self._books.busy[level]
            busy[0] += end_ps - start_ps
            busy[1] += num_forwards
        if way.place < len(way.cycle.ops) - 1:
            way.place += 1
            return
        self._under_way = None
        if self._rows:
            self._written(end_ps)
        if way.ending or way.chunks:
            self._read(way, going)
        self._books.note_outputs(way.ending, end_ps, self._reached)
        self._reached = []

    def _written(self, end_ps: int) -> None:
        """End a cycle that was carried out operation by operation."""
        rows = self._rows
        if self._odd:
            self._flush()
            recorder, odd = self._books.recorder, self._odd
            for row in odd:
                recorder.gaps(end_ps - row.request.noted_at_ps, 0, 1, 1)
            if len(rows) > len(odd):
                recorder.gaps(end_ps - self._out_ps, 0, 1, len(rows) - len(odd))
            self._odd = []
        else:
            self._gaps.append(end_ps - self._out_ps)
        if self._runs_alone:
            self._stepped(rows, 1, end_ps)
            return
        self._out_ps = end_ps
        rows.sort(key=_last_place)
        for row in rows:
            row.node.times += 1
            row.text += row.node.committed
        looked_at = [row for row in rows if not self._turned(row)]
        if looked_at:
            self._looked_at(looked_at)

    def _read(self, way: UnderWay, going: Operation) -> None:
        """Apply prefills: chunks are read, and those that ended wrote their first token."""
        asked, memory, batch, end_ps = self._asked, self._memory, self._scheduler.batch, going.end_ps
        asked.load.now_s = end_ps / PS_PER_S
        ending = way.ending
        if ending:
            num_rows = len(self._rows) + len(ending)
            asked.prefilled(ending, way.judged, to_s(end_ps - going.start_ps), num_rows)
            for request in ending:
                request.chunk = 0
                batch.read(request)
        for request in way.chunks:
            request.cached[self._target] += request.chunk
            request.chunk = 0
        if memory.has_caches:
            for request in (*way.chunks, *ending):
                memory.commit(request)

    # -- the target alone

    def _added_up(self, now_ps: int, until_ps: float) -> int | None:
        """As `_flown`, of the target alone: as many cycles at once as change only the length of texts."""
        rows, recorder = self._rows, self._books.recorder
        num_rows, ends, end_ps = len(rows), False, None
        if num_rows > self._budget:
            return None
        self._flush()
        texts = sum([row.text for row in rows])
        while not ends:
            most = left = min([min(row.request.most_tokens, row.until) - row.text for row in rows])
            end, each_ps, slope = self._cycles.even(num_rows, texts)
            more_ps = slope * num_rows
            if end < texts + most * num_rows:
                most = -(-(int(end) - texts) // num_rows)
            most = steps_before(until_ps - now_ps, each_ps, more_ps, most)
            most = self._grown(rows, most, now_ps, each_ps, more_ps)
            if most < 1:
                break
            took_ps = most * each_ps + more_ps * (most * (most - 1) // 2)
            recorder.gaps(each_ps, more_ps, most, num_rows)
            self._cycles.tell_busy(self._target, took_ps, most)
            end_ps = now_ps = now_ps + took_ps
            texts += most * num_rows
            ends = most == left
            self._stepped(rows, most, now_ps)
        return end_ps

    def _stepped(self, rows: list[FlownRow], count: int, now_ps: int) -> None:
        """Apply `count` cycles of the target alone."""
        self._out_ps = now_ps
        self._num_even += count * len(rows)
        looked_at = []
        for row in rows:
            row.text = text = row.text + count
            if text >= row.until or text >= row.request.most_tokens:
                looked_at.append(row)
        if looked_at:
            self._looked_at(looked_at)

    def _count_ends(self, row: FlownRow) -> None:
        """Count the ended segments of a row of the target alone."""
        request = row.request
        written = len(request.emitted) + row.text - request.num_text
        row.length = self._lengths.of(request.recorded_id)
        row.num_ends = (written - (row.text >= request.most_tokens)) // row.length

    def _grown(self, rows: list[FlownRow], most: int, now_ps: int, each_ps: int, more_ps: int) -> int:
        """Hold blocks for `most` cycles, each when needed; returns the cycles with enough blocks, maybe 0."""
        first = min([row.held - row.text for row in rows])
        if first >= most:
            return most
        kv, target = self._memory.target, self._target
        size = kv.limits.block_tokens
        grants = [(cycle, row) for row in rows for cycle in range(row.held - row.text, most, size)]
        if len(grants) > kv.available_blocks:
            return first
        grow, grew = self._memory.grow, self._books.grew
        for cycle, row in grants:
            grow(row.request, target, 1)
            grew(target, 1, now_ps + cycle * each_ps + more_ps * (cycle * (cycle - 1) // 2))
            row.held += size
        return most

    # -- blocks

    def _has_room(self) -> bool:
        """Whether there are blocks for a cycle, and some more; if not, preemption is done step by step."""
        count = lacking = 0
        for row in self._rows:
            short = row.text + (1 if self._runs_alone else row.node.wanted) - row.held
            if short > 0:
                count += 1
                lacking += short
        for level in self._rounds.levels:
            kv = self._memory.members[level]
            if kv is not None and lacking // self._sizes[level] + count > kv.available_blocks:
                return False
        return True

    def _hold_all(self, cycle: Cycle, more: int, now_ps: int) -> None:
        """Hold blocks for a cycle, each when its operation begins."""
        last, left = len(cycle.ops) - 1, True
        for place, (_, ps, slope, _) in enumerate(cycle.ops):
            left = self._hold(place, last, now_ps)
            if not left:
                return
            now_ps += ps + slope * more

    def _hold(self, place: int, last: int, at_ps: int | None) -> bool:
        """Hold blocks for the operation at a place of a cycle, of which there are enough.

        Args:
            place: index of the operation.
            last: index of the target's.
            at_ps: when it begins, to note each block; None: the caller notes the state.

        Returns:
            Whether later operations of the cycle need blocks.
        """
        rounds, target, sizes, grow, left = self._rounds, self._target, self._sizes, self._memory.grow, False
        needs: tuple[tuple[int, int, int], ...] = ((0, target, 1),)
        own_last, longest = 0, 1
        for row in self._rows:
            text = row.text
            if not self._runs_alone:
                shape = row.node.shape
                needs, own_last, longest = shape.needs, shape.last, shape.wanted
            if text + longest <= row.held:
                continue
            request = row.request
            room, most = request.room_held, request.most_tokens
            is_last = True
            for at, level, tokens in needs:
                if at == own_last:
                    at = last
                if at != place:
                    is_last = is_last and at < place
                    continue
                wanted = text + tokens
                lacking = (wanted if wanted < most else most) - room[level]
                if lacking > 0:
                    blocks = -(-lacking // sizes[level])
                    grow(request, level, blocks)
                    if at_ps is not None:
                        self._books.grew(level, blocks, at_ps)
            if is_last:
                held = min([room[level] for level in rounds.levels])
                row.held = held if held < most else MOST_TEXT
            else:
                left = True
        return left

    # -- the end of a flight

    def land(self) -> None:
        """Land all requests, which are then ready; a begun cycle is dropped."""
        self.look()
        self._asked.ready[:0] = [row.request for row in self._rows]
        self._rows, self._odd = [], []

    def look(self) -> None:
        """Update requests, which remain in flight."""
        self._flush()
        for row in self._rows:
            if row.text > row.request.num_text:
                if not self._runs_alone:
                    row.lack = row.node.lack
                self._landed(row)
                if self._caching:
                    self._memory.commit(row.request)

    def _flush(self) -> None:
        """Record the gaps between tokens, which are those of all rows."""
        if self._gaps:
            self._books.recorder.single_gaps(self._gaps, len(self._rows))
            self._gaps.clear()
            self._books.noted_ps = self._out_ps

    def _landed(self, row: FlownRow) -> None:
        """Update a request after the rounds that it flew, at least one."""
        asked, books, request, lack = self._asked, self._books, row.request, row.lack
        count = row.text - request.num_text
        if self._runs_alone:
            self._count_ends(row)
        self._note_caches(row)
        request.noted_at_ps = self._out_ps
        asked.load.context_tokens += count
        books.num_emitted += count
        start, tokens_of = len(request.emitted), self._rounds.tokens
        ended: list[int] = []
        if row.num_ends:
            left, again = row.length - start, row.num_ends - 1
            ended = tokens_of(request.recorded_id, start, left)
            if again:
                ended += tokens_of(request.recorded_id, 0, row.length) * again
            start, count = 0, count - left - row.length * again
        rest = tokens_of(request.recorded_id, start, count)
        place = ON_TRUNK if request.tables is None else request.tables.trunk[start + count]
        request.flew(ended, row.num_ends, row.length, rest, place)
        row.begin(lack)

    def _note_caches(self, row: FlownRow) -> None:
        """Set a request's cached tokens."""
        for level, tokens in zip(self._rounds.levels, self._rounds.lacking[row.lack], strict=False):
            row.request.cached[level] = row.text - tokens

    # -- the books

    def _tell_rounds(self) -> None:
        """Record judged tokens, and count modelled decisions."""
        recorder = self._books.recorder
        for node in self._rounds.nodes:
            times, node.times = node.times, 0
            for op in node.shape.round.ops if times else ():
                self._asked.num_modelled += times * op.modelled
                if not op.drafts:
                    recorder.judged(op.level, times * op.judged, times * op.accepted, times * op.own, times)

    def _tell_begun(self, row: FlownRow, num_ops: int) -> None:
        """The same for a round that ends early, after `num_ops` operations below the target."""
        for op in () if self._runs_alone else row.node.shape.round.ops[:-1][:num_ops]:
            self._asked.num_modelled += op.modelled
            if not op.drafts:
                self._books.recorder.judged(op.level, op.judged, op.accepted, op.own, 1)

    def close(self) -> None:
        """Record all that has run, at the end of the run."""
        if self._under_way is not None:
            for row in self._rows:
                self._tell_begun(row, self._under_way.place)
        self.land()
        self._cycles.tell()
        if self._num_even:
            self._books.recorder.judged(self._target, 0, 0, self._num_even, self._num_even)
            self._num_even = 0
        self._tell_rounds()


def _last_place(row: FlownRow) -> int:
    return row.node.shape.last
