"""A fast path of the engine: whole cycles of policies that decide only by pending tokens, as numbers.

The rounds of such requests are known (`FlownRounds`), so a cycle of the batch is sums over its rows, and of the target
alone many cycles are one sum. Requests are **in flight** while whole cycles end in time and nothing but decoding is
due; then they land, updated, and `Replica` carries out the next operations from the same state. Without this module
only speed would be lost.
"""

from ...decoding.pool import Pool
from ..rounds_answers import ON_TRUNK
from ..rounds_once import FixedRounds
from .asked import AskedPolicy
from .flown import LACKS_MUCH, MOST_ROWS, Cycle, Cycles, FlownRounds, FlownRow, sized, steps_before
from .replica import ReplicaBooks
from .replica_memory import ReplicaMemory
from .requests import ServedRequest
from .world import ServedWorld

MOST_NODES = 1 << 18
MOST_TEXT = 1 << 62

NO_PATTERN = -2


class Flights:
    """Flies the requests of one replica.

    Attributes:
        has_flown: whether any cycle was carried out here.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        rounds: FixedRounds,
        asked: AskedPolicy,
        memory: ReplicaMemory,
        books: ReplicaBooks,
        world: ServedWorld,
        budget: int,
        runs_alone: bool,
    ) -> None:
        num_free = world.answers.num_free
        self._target = pool.target_level
        self._rounds = FlownRounds(pool, rounds, num_free)
        self._asked, self._memory, self._books = asked, memory, books
        self._budget = budget
        self._runs_alone = runs_alone
        self._num_even = 0
        self._caching = [level for level, kv in enumerate(memory.members) if kv is not None and kv.limits.prefix_cache]
        self._sizes = [kv.limits.block_tokens if kv is not None else 1 for kv in memory.members]
        self._cycles = Cycles(pool, world.charges, num_free, budget, books.busy)
        self.has_flown = False
        self._rows: list[FlownRow] = []
        self._gaps: list[int] = []  # between tokens of all rows, not recorded yet
        self._out_ps = 0  # instant of the latest tokens
        self._is_unfit = False  # a row must run step by step
        self._reached: list[ServedRequest] = []  # in the latest cycle, with tokens that others wait for

    def run(self, now_ps: int, until_ps: int) -> int | None:
        """Run whole cycles that end before `until_ps`, at most until a request ends or reaches awaited tokens.

        All requests of the batch decode, and are at the start of a round.

        Returns:
            When the last cycle ended, with requests still in flight; None: none has run.
        """
        if not self._rows and not self._taken_up(now_ps):
            return None
        if self._is_unfit:
            self._is_unfit = False
            return None
        end_ps = self._added_up(now_ps, until_ps) if self._runs_alone else self._flown(now_ps, until_ps)
        self.has_flown = self.has_flown or end_ps is not None
        if self._reached:
            assert end_ps is not None
            self._books.reached(self._reached, end_ps)
            self._reached = []
        return end_ps

    def land(self) -> None:
        """Land all requests, which are then ready."""
        if not self._rows:
            return
        self._flush()
        for row in self._rows:
            if row.text > row.request.num_text:
                if not self._runs_alone:
                    row.lack = row.node.lack
                self._landed(row)
                if self._caching:
                    self._memory.commit(row.request)
        self._asked.ready[:0] = [row.request for row in self._rows]
        self._rows = []

    def close(self) -> None:
        """Record all that has run, at the end of the run."""
        self._cycles.tell()
        if self._num_even:
            self._books.recorder.judged(self._target, 0, 0, self._num_even, self._num_even)
            self._num_even = 0
        self._tell_rounds()

    # -- requests in flight

    def _taken_up(self, now_ps: int) -> bool:
        """Take up all ready requests; False: there are none, or one of them cannot fly."""
        asked, rounds = self._asked, self._rounds
        if len(rounds.nodes) > MOST_NODES:
            self._tell_rounds()
            rounds.forget()
        if not 0 < len(asked.ready) < MOST_ROWS:
            return False
        rows = []
        for request in asked.ready:
            if request.place < 0 or request.noted_at_ps != now_ps:
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
        self._rows, self._out_ps = rows, now_ps
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

    def _flown(self, now_ps: int, until_ps: int) -> int | None:
        """Run whole cycles that end before `until_ps`, until a row needs attention; returns when the last one ended.

        None: none has run.
        """
        rows, gaps, cycles, turned = self._rows, self._gaps, self._cycles.by_key, self._turned
        windowed = self._memory.windowed
        key, texts, is_mixed, short = sized(rows)
        end_ps: int | None = None
        while True:
            cycle = None if is_mixed else cycles.get(key)
            if cycle is None or not cycle.start <= texts < cycle.end:
                cycle = self._cycles.mixed(rows, texts) if is_mixed else self._cycles.known(key, rows, texts)
            if cycle is None:
                break
            more = texts - cycle.start
            took_ps = cycle.ps + cycle.slope * more
            if now_ps + took_ps >= until_ps or (short and not self._has_room(short)):
                break
            if short:
                self._hold(short, cycle, more, now_ps)
            if is_mixed:
                self._cycles.tell_once(cycle.ops)
                rows.sort(key=lambda row: row.node.shape.last)  # the order in which they reach the target
            else:
                cycle.times += 1
                cycle.tokens += more
            end_ps = now_ps = now_ps + took_ps
            if windowed:
                self._slide(now_ps)
            gaps.append(took_ps)
            # Each row advances to its next round, whose figures are added up for the next cycle.
            looked_at: list[FlownRow] = []
            short = []
            key = texts = 0
            is_mixed = False
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
                    short.append(row)
            if looked_at:
                self._out_ps = now_ps
                if self._looked_at(looked_at) or self._is_unfit:
                    break
                key, texts, is_mixed, short = sized(rows)
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

    # -- the target alone

    def _added_up(self, now_ps: int, until_ps: int) -> int | None:
        """As `_flown`, of the target alone: as many cycles at once as change only the length of texts."""
        rows, recorder = self._rows, self._books.recorder
        num_rows, ends, end_ps = len(rows), False, None
        if num_rows > self._budget:
            return None
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
            self._out_ps = end_ps = now_ps = now_ps + took_ps
            self._num_even += most * num_rows
            texts += most * num_rows
            for row in rows:
                row.text += most
            ends = most == left
            if ends:
                self._looked_at([row for row in rows if row.text >= min(row.until, row.request.most_tokens)])
        return end_ps

    def _count_ends(self, row: FlownRow) -> None:
        """Count the ended segments of a row of the target alone."""
        request = row.request
        written = len(request.emitted) + row.text - request.num_text
        row.length = self._rounds.length(request.recorded_id)
        row.num_ends = (written - (row.text >= request.most_tokens)) // row.length

    def _grown(self, rows: list[FlownRow], most: int, now_ps: int, each_ps: int, more_ps: int) -> int:
        """Hold blocks for `most` cycles, each when needed, and free those before windows.

        Returns the cycles with enough blocks, maybe 0.
        """
        first = min([row.held - row.text for row in rows])
        kv, target = self._memory.target, self._target
        size, window = kv.limits.block_tokens, kv.limits.window
        if first >= most and window is None:
            return most
        due = [(cycle, True, row) for row in rows for cycle in range(row.held - row.text, most, size)]
        if len(due) * kv.each > kv.available_blocks:
            most, due = first, []
        if window is not None:  # a block leaves it at the end of a cycle, before one is taken
            for row in rows:
                due += [
                    (cycle, False, row) for cycle in range((window.tokens - 1 - row.text) % size + 1, most + 1, size)
                ]
            due.sort(key=lambda one: one[:2])
        grow, give_up, grew = self._memory.grow, self._memory.give_up, self._books.grew
        for cycle, takes, row in due:
            if takes:
                blocks = grow(row.request, target, 1)
                row.held += size
            else:
                blocks = -give_up(row.request, target, row.text + cycle - 1)
            grew(target, blocks, now_ps + cycle * each_ps + more_ps * (cycle * (cycle - 1) // 2))
        return most

    # -- blocks

    def _has_room(self, short: list[FlownRow]) -> bool:
        """Whether there are blocks for a cycle, and some more; if not, preemption is done step by step."""
        count, lacking = len(short), 0
        for row in short:
            lacking += row.text + row.node.wanted - row.held
        members, sizes = self._memory.members, self._sizes
        for level in self._rounds.levels:
            kv = members[level]
            if kv is not None and (lacking // sizes[level] + count) * kv.each > kv.available_blocks:
                return False
        return True

    def _hold(self, short: list[FlownRow], cycle: Cycle, more: int, now_ps: int) -> None:
        """Hold blocks for a cycle, of which there are enough, each from when its operation begins."""
        sizes, grow, grew, levels = self._sizes, self._memory.grow, self._books.grew, self._rounds.levels
        starts_ps = []
        for _, ps, slope, _ in cycle.ops:
            starts_ps.append(now_ps)
            now_ps += ps + slope * more
        for row in short:
            request, text, shape = row.request, row.text, row.node.shape
            room, most = request.room_held, request.most_tokens
            for place, level, tokens in shape.needs:
                wanted = text + tokens
                lacking = (wanted if wanted < most else most) - room[level]
                if lacking > 0:
                    blocks = grow(request, level, -(-lacking // sizes[level]))
                    grew(level, blocks, starts_ps[-1 if place == shape.last else place])
            held = MOST_TEXT
            for level in levels:
                if room[level] < held:
                    held = room[level]
            row.held = held if held < most else MOST_TEXT

    def _slide(self, at_ps: int) -> None:
        """Free blocks before windows, as the engine does, at the end of a cycle that rows have not taken in yet."""
        lacking, windowed = self._rounds.lacking, self._memory.windowed
        places = [(place, level) for place, level in enumerate(self._rounds.levels) if level in windowed]
        for row in self._rows:
            text, lacks = row.text + row.node.committed, lacking[row.node.shape.lack]
            for place, level in places:
                if blocks := self._memory.give_up(row.request, level, text - max(lacks[place], 1)):
                    self._books.grew(level, -blocks, at_ps)

    # -- the end of a flight

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

    def _tell_rounds(self) -> None:
        """Record judged tokens, and count modelled decisions."""
        recorder = self._books.recorder
        for node in self._rounds.nodes:
            times, node.times = node.times, 0
            for op in node.shape.round.ops if times else ():
                self._asked.num_modelled += times * op.modelled
                if not op.drafts:
                    recorder.judged(op.level, times * op.judged, times * op.accepted, times * op.own, times)
