"""The fast path of the engine: whole cycles at once, of policies that pending tokens alone decide.

A round of such a policy follows from the recorded request, the place in its answer and what caches lack
(`FixedRounds`), so it is played once and is numbers from then on. While everybody decodes, blocks suffice and nobody
looks, the cycles of a batch are sums of these; of the target alone many cycles are one sum. Whatever else comes up ends
the flight between two cycles, and `Replica` goes on from there, step by step; nothing but speed would be lost without
this module.
"""

from typing import NamedTuple

from ...decoding.pool import Pool
from ...traces.workloads.arrival import PS_PER_S
from ..played_round import FixedOp, PlayedRound
from ..rounds_answers import ON_TRUNK
from ..rounds_once import FixedRounds
from .asked import AskedPolicy
from .charges import ServingCharges
from .replica import ReplicaBooks
from .replica_memory import ReplicaMemory
from .requests import AnswerLengths, ServedRequest

MOST_LACKING = 256  # tokens that a cache which takes part may lack
LACK_BITS = 20
FIELD_BITS = 24  # of a sum over the rows of a batch
MOST_ROWS = 1 << 12
MOST_NODES = 1 << 18
MOST_CYCLES = 1 << 14
MOST_TEXT = 1 << 62


class Slot(NamedTuple):
    """One operation of a round; what caches hold is counted from the start of the round's text.

    Attributes:
        level: of the member.
        drafts: whether it drafts.
        new: tokens that the row is fed.
        held: tokens that its cache holds then, less those of the text.
        drafted: tokens that it writes.
        context: pending tokens before it.
        wanted: tokens that blocks are held for, less those of the text.
    """

    level: int
    drafts: bool
    new: int
    held: int
    drafted: int
    context: int
    wanted: int


class Shape(NamedTuple):
    """A round of requests whose caches lack so much of their text.

    Attributes:
        round: which.
        slots: its operations, that of the target last.
        needs: place of an operation, member, and tokens that blocks of it are held for then, less those of the text.
        wanted: most tokens that blocks of any member are held for, less those of the text.
        pattern: number of rounds with the same members, each drafting as much.
        sums: packed numbers of the slots; those of rows add up, and decide what a cycle of rows of one pattern takes.
        lack: number of what caches lack where the next round begins.
    """

    round: PlayedRound
    slots: tuple[Slot, ...]
    needs: tuple[tuple[int, int, int], ...]
    wanted: int
    pattern: int
    sums: int
    lack: int


class UnfitError(Exception):
    """A round that cannot be flown."""


class RoundNode:
    """A round at a place of a recorded answer.

    Attributes:
        shape: of the round; `committed`, `ends`, `needs`, `wanted`, `pattern`, `sums` are its, or its round's.
        key: of the place after it.
        after: the next round; None: nobody with room enough was there, or the segment ends.
        times: how often it was played since the recorder was told.
    """

    __slots__ = ("after", "committed", "ends", "key", "needs", "pattern", "shape", "sums", "times", "wanted")

    def __init__(self, shape: Shape, position: int) -> None:
        played = shape.round
        self.shape = shape
        self.committed, self.ends, self.needs = played.committed, played.ends, played.needs
        self.wanted, self.pattern, self.sums = shape.wanted, shape.pattern, shape.sums
        self.key = shape.lack if played.ends else (position + played.committed) << LACK_BITS | shape.lack
        self.after: RoundNode | None = None
        self.times = 0


class FlownRow:
    """A request in flight.

    Attributes:
        request: which.
        nodes: known ones of its recorded request, by place and lack.
        node: its next round.
        key: place and lack of that.
        room: tokens that the segment may still have.
        text: its tokens.
        held: tokens that the blocks of every member which takes part have room for.
        until: tokens of its text with which it has to be looked at: a block is full, or others wait for them.
        num_ends: segments that ended in this flight; another one began after each.
        length: tokens of a segment, once one ended.
    """

    __slots__ = ("held", "key", "length", "node", "nodes", "num_ends", "request", "room", "text", "until")

    node: RoundNode
    until: int

    def __init__(self, request: ServedRequest, nodes: dict[int, RoundNode], lack: int, held: int) -> None:
        self.request = request
        self.nodes = nodes
        self.held = held
        self.begin(lack)

    def begin(self, lack: int) -> None:
        """Stand where the request stands."""
        request = self.request
        position = len(request.emitted)
        self.key = position << LACK_BITS | lack
        self.room = request.budget - position
        self.text = request.num_text
        self.num_ends = self.length = 0


class Cycle:
    """The picoseconds of cycles of so many rows of one pattern, by the tokens of all texts together.

    Attributes:
        start, end: of these tokens, for which it holds.
        ps, slope: of the whole cycle, at `start` and for each token more.
        ops: level, picoseconds, slope and forwards of each operation.
        times, tokens: cycles that were flown, and what their texts had beyond `start`, since the books were told.
    """

    __slots__ = ("end", "ops", "ps", "slope", "start", "times", "tokens")

    def __init__(self, start: int, end: float, ops: list[tuple[int, int, int, int]]) -> None:
        self.start, self.end, self.ops = start, end, ops
        self.ps, self.slope = sum([op[1] for op in ops]), sum([op[2] for op in ops])
        self.times = self.tokens = 0


class Beats:
    """Flies the requests of one replica.

    Args:
        pool: the members.
        rounds: of the policy.
        asked: the policy, whose ready requests these are.
        memory: of the replica.
        books: of the replica.
        charges: seconds of operations.
        num_free: model-free members, which come first in the pool.
        budget: tokens that a forward is fed at most.
        lengths: of recorded answers.
        runs_alone: whether the policy runs the target alone.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        rounds: FixedRounds,
        asked: AskedPolicy,
        memory: ReplicaMemory,
        books: ReplicaBooks,
        charges: ServingCharges,
        num_free: int,
        budget: int,
        lengths: AnswerLengths,
        runs_alone: bool,
    ) -> None:
        self._names = pool.names
        self._target = pool.target_level
        self._keeps = [not member.model_free for member in pool.members]
        self._rounds = rounds
        self._asked = asked
        self._memory = memory
        self._books = books
        self._forward_ps, self._lines, self._lookup_ps = charges.forward_ps, charges.lines, charges.looked_up(1)
        self._num_free = num_free
        self._budget = budget
        self._lengths, self._runs_alone = lengths, runs_alone
        self._levels = [pool.target_level]  # that take part and have caches, as far as is known
        self._lacks: dict[tuple[int, ...], int] = {}
        self._lacking: list[tuple[int, ...]] = []
        self._by_request: dict[str, dict[int, RoundNode]] = {}
        self._shapes: dict[tuple[PlayedRound, int], Shape] = {}
        self._patterns: dict[tuple[tuple[int, bool, int], ...], int] = {}
        self._nodes: list[RoundNode] = []
        self._num_even = 0
        self._caching = [level for level, kv in enumerate(memory.members) if kv is not None and kv.limits.prefix_cache]
        self._cycles: dict[int, Cycle] = {}

    def fly(self, now_ps: int, until_ps: float) -> int:
        """Let all who are ready run whole cycles that end before `until_ps`; returns when the last one ended."""
        ready = self._asked.ready
        if len(ready) >= MOST_ROWS:
            return now_ps
        if len(self._nodes) > MOST_NODES:
            self.close()
            self._by_request, self._nodes = {}, []
        rows, is_even = [], self._runs_alone
        for request in ready:
            if request.place < 0:
                return now_ps
            nodes = self._by_request.get(request.recorded_id)
            if nodes is None:
                nodes = self._by_request[request.recorded_id] = {}
            text, cached = request.num_text, request.cached
            lack = self._number(tuple([text - cached[level] for level in self._levels]))
            row = FlownRow(request, nodes, lack, self._held(request))
            is_even = is_even and text - cached[self._target] == 1
            if not is_even:
                node = self._node_of(row)
                if node is None:
                    return now_ps
                row.node = node
            row.until = self._until(request)
            rows.append(row)
        now_ps = self._jumped(rows, now_ps, until_ps) if is_even else self._flown(rows, now_ps, until_ps)
        for row in rows:
            self._land(row)
        self._asked.load.now_s = now_ps / PS_PER_S
        return now_ps

    def _held(self, request: ServedRequest) -> int:
        room = request.room_held
        return min([room[level] for level in self._levels])

    def _until(self, request: ServedRequest) -> int:
        """Tokens of the text with which others look at it: a block enters a prefix cache, or its session goes on."""
        until = MOST_TEXT
        if self._caching and (request.arrival.answer or request.was_put_back):
            # The newest token is in no cache. Blocks that nobody else can find enter when the flight ends.
            until = min([request.full_at[level] for level in self._caching]) + 1
        return min(until, request.arrival.prompt_tokens + request.depths[0]) if request.depths else until

    # -- cycles

    def _flown(self, rows: list[FlownRow], now_ps: int, until_ps: float) -> int:
        cycles, gaps, first_ps = self._cycles, list[int](), -1
        going = True
        while going:
            key = texts = 0
            pattern, is_mixed, short = rows[0].node.pattern, False, False
            for row in rows:
                node, text = row.node, row.text
                key += node.sums
                texts += text
                if node.pattern != pattern:
                    is_mixed = True
                if text + node.wanted > row.held:
                    short = True
            cycle: Cycle | None
            if is_mixed:
                cycle = self._mixed(rows, texts)
            else:
                cycle = cycles.get(key)
                if cycle is None or not cycle.start <= texts < cycle.end:
                    cycle = self._cycle(key, rows, texts)
            if cycle is None:
                break
            more = texts - cycle.start
            took_ps = cycle.ps + cycle.slope * more
            end_ps = now_ps + took_ps
            if end_ps >= until_ps or (short and not self._reserve(rows, cycle, more, now_ps)):
                break
            cycle.times += 1
            cycle.tokens += more
            if is_mixed:
                self._tell(cycle)
            if first_ps < 0:
                first_ps = end_ps
            else:
                gaps.append(took_ps)
            now_ps = end_ps
            ended = None
            for row in rows:
                node = row.node
                node.times += 1
                tokens = node.committed
                row.text = text = row.text + tokens
                row.key = node.key
                row.room = room = row.room - tokens
                after = node.after
                if after is None or after.needs > room or text >= row.until:
                    if ended is None:
                        ended = [row]
                    else:
                        ended.append(row)
                else:
                    row.node = after
            if ended is not None:
                looked_at = [row for row in ended if not self._turned(row)]
                if looked_at:
                    self._note(rows, first_ps, now_ps, gaps)
                    gaps = []
                    for row in looked_at:
                        going &= self._goes_on(row, now_ps)
        if first_ps >= 0:
            self._note(rows, first_ps, now_ps, gaps)
        return now_ps

    def _turned(self, row: FlownRow) -> bool:
        """Find the next round of a row, which may be that of another segment; False: the row has to be looked at."""
        node = row.node
        if node.ends:
            request = row.request
            left = request.most_tokens - row.text
            if left <= 0:
                return False
            if not row.num_ends:
                row.length = row.text - request.num_text + len(request.emitted)
            row.num_ends += 1
            row.room = min(request.whole_budget, left)
        if row.text >= row.until:
            return False
        after = row.nodes.get(row.key)
        if after is None or after.needs > row.room:
            after = self._node_of(row)
            if after is None:
                return False
        elif not node.ends:
            node.after = after
        row.node = after
        return True

    def _goes_on(self, row: FlownRow, now_ps: int) -> bool:
        """Look at a row: its answer ends, others are told, or no round is known; False: the flight ends here."""
        lack = row.key & ((1 << LACK_BITS) - 1)
        if not self._looked_at(row, now_ps):
            return False
        row.begin(lack)
        row.until = self._until(row.request)
        after = self._node_of(row)
        if after is None:
            return False
        row.node = after
        return True

    def _looked_at(self, row: FlownRow, now_ps: int) -> bool:
        """Land a row, and tell of it; returns whether it goes on, and nobody else has to be asked first."""
        request = row.request
        goes_on = self._land(row)
        self._memory.commit(request)
        if request.depths and request.num_answer >= request.depths[0]:
            self._books.reached([request], now_ps)
            return False
        return goes_on

    def _note(self, rows: list[FlownRow], first_ps: int, now_ps: int, gaps: list[int]) -> None:
        """Write down when tokens came out: each request has its own gap before the first cycle."""
        recorder = self._books.recorder
        own: dict[int, int] = {}
        for row in rows:
            out_ps = row.request.noted_at_ps
            if out_ps < first_ps:
                own[first_ps - out_ps] = own.get(first_ps - out_ps, 0) + 1
            row.request.noted_at_ps = now_ps
        for gap_ps, count in own.items():
            recorder.gaps(gap_ps, 0, 1, count)
        if gaps:
            recorder.single_gaps(gaps, len(rows))

    # -- what they take

    def _cycle(self, key: int, rows: list[FlownRow], texts: int) -> Cycle | None:
        """That of rows of one pattern; None: an operation might be fed more than the budget."""
        start, end, count, lookup_ps = 0, float("inf"), len(rows), self._lookup_ps
        ops: list[tuple[int, int, int, int]] = []
        for slots in zip(*[row.node.shape.slots for row in rows], strict=True):
            level, drafts, drafted = slots[0].level, slots[0].drafts, slots[0].drafted
            if level < self._num_free:
                ops.append((level, count * lookup_ps, 0, 0))
                continue
            if drafts and not drafted:
                ops.append((level, 0, 0, 0))
                continue
            new = sum([slot.new for slot in slots])
            if new > self._budget:
                return None
            lines = [(1, self._line(level, count, new, sum([slot.held for slot in slots]), texts))]
            if drafted > 1:
                middle = sum([slot.context for slot in slots]) + count * (drafted - 2) // 2
                lines.append((drafted - 1, self._line(level, count, count, middle, texts)))
            ps = slope = 0
            for repeats, (first, last, line_ps, line_slope) in lines:
                start, end = max(start, first), min(end, last)
                ps += repeats * (line_ps + line_slope * (texts - first))
                slope += repeats * line_slope
            ops.append((level, ps, slope, drafted or 1))
        # All from where the texts stand now, which is as good a start as any.
        known = self._cycles.get(key)
        if known is not None:
            self._tell(known)
        elif len(self._cycles) >= MOST_CYCLES:
            self._tell_cycles()
        found = self._cycles[key] = Cycle(texts, end, ops)
        return found

    def _line(self, level: int, num_rows: int, new: int, held: int, texts: int) -> tuple[int, float, int, int]:
        """(start, end, picoseconds at the start, slope) of a forward by the tokens of all texts, `held` beside them."""
        lines, name = self._lines, self._names[level]
        if lines is None:
            return texts, texts + 1, self._forward_ps(name, num_rows, new, held + texts), 0
        start, end, start_ps, slope_ps = lines.line(name, num_rows, new, held + texts)
        return start - held, end - held, start_ps, slope_ps

    def _mixed(self, rows: list[FlownRow], texts: int) -> Cycle | None:
        """That of rows of several patterns, for these texts alone."""
        below: list[tuple[int, list[int], list[tuple[int, int]]]] = []  # level; rows, new and held; lengths of drafts
        last = [0, 0, 0]
        for row in rows:
            text, slots = row.text, row.node.shape.slots
            for place, (level, drafts, new, held, drafted, context, _) in enumerate(slots):
                if place == len(slots) - 1:
                    sums = last
                else:
                    if place == len(below):
                        below.append((level, [0, 0, 0], []))
                    _, sums, lengths = below[place]
                    if drafted > 1:
                        lengths.append((drafted, text + context))
                    elif drafts and not drafted and level >= self._num_free:
                        continue
                sums[0] += 1
                sums[1] += new
                sums[2] += text + held
        ops: list[tuple[int, int, int, int]] = []
        names, forward_ps, budget = self._names, self._forward_ps, self._budget
        for level, (count, new, held), lengths in (*below, (self._target, last, [])):
            if new > budget:
                return None
            if level < self._num_free:
                ops.append((level, count * self._lookup_ps, 0, 0))
                continue
            if not count:
                ops.append((level, 0, 0, 0))
                continue
            ps, done = forward_ps(names[level], count, new, held), 1
            if lengths:
                later_ps, done = self._later(names[level], lengths)
                ps += later_ps
            ops.append((level, ps, 0, done))
        return Cycle(texts, texts + 1, ops)

    def _later(self, model: str, lengths: list[tuple[int, int]]) -> tuple[int, int]:
        """The forwards of a draft after its first one, of rows by length and context: picoseconds; all its forwards."""
        duration_ps, done = 0, 1
        while lengths:
            length, rows = min(lengths)[0], len(lengths)
            repeats = length - done
            if repeats:
                middle = sum([context for _, context in lengths]) + rows * (2 * done + repeats - 3) // 2
                duration_ps += repeats * self._forward_ps(model, rows, rows, middle)
            done = length
            lengths = [one for one in lengths if one[0] > length]
        return duration_ps, done

    def _tell(self, cycle: Cycle) -> None:
        """Tell the books of what members were busy with."""
        times, tokens, busy = cycle.times, cycle.tokens, self._books.busy
        for level, ps, slope, forwards in cycle.ops:
            if forwards:  # lookups are nobody's
                busy[level][0] += times * ps + slope * tokens
                busy[level][1] += times * forwards
        cycle.times = cycle.tokens = 0

    def _tell_cycles(self) -> None:
        for cycle in self._cycles.values():
            self._tell(cycle)
        self._cycles.clear()

    # -- the target alone

    def _jumped(self, rows: list[FlownRow], now_ps: int, until_ps: float) -> int:
        """As `_flown`, of the target alone: as many cycles at once as nothing changes but the length of texts."""
        num_rows, first_ps, recorder = len(rows), -1, self._books.recorder
        going = True
        while going:
            texts = sum([row.text for row in rows])
            most = min([min(row.request.most_tokens, row.until) - row.text for row in rows])
            cycle = self._cycles.get(num_rows)
            if cycle is None or not cycle.start <= texts < cycle.end:
                cycle = self._even_cycle(num_rows, texts)
            if num_rows > self._budget:
                break
            more = texts - cycle.start
            each_ps, more_ps = cycle.ps + cycle.slope * more, cycle.slope * num_rows
            if cycle.end < texts + most * num_rows:
                most = -(-(int(cycle.end) - texts) // num_rows)
            most = _steps_before(until_ps - now_ps, each_ps, more_ps, most)
            most = self._grown(rows, most, now_ps, each_ps, more_ps)
            if most < 1:
                break
            took_ps = most * each_ps + more_ps * (most * (most - 1) // 2)
            cycle.times += most
            cycle.tokens += most * more + num_rows * (most * (most - 1) // 2)
            self._num_even += most * num_rows
            if first_ps < 0:
                first_ps = now_ps + each_ps
                self._note(rows, first_ps, first_ps, [])
                if most > 1:
                    recorder.gaps(each_ps + more_ps, more_ps, most - 1, num_rows)
            else:
                recorder.gaps(each_ps, more_ps, most, num_rows)
            now_ps += took_ps
            for row in rows:
                row.request.noted_at_ps = now_ps
                row.text += most
                if row.text >= row.until or row.text >= row.request.most_tokens:
                    going = False
        for row in rows:
            self._count_ends(row)
            if row.text >= row.until or row.text >= row.request.most_tokens:
                self._looked_at(row, now_ps)
        return now_ps

    def _count_ends(self, row: FlownRow) -> None:
        """Of the segments that a row has come to the end of."""
        request = row.request
        written = len(request.emitted) + row.text - request.num_text
        row.length = self._lengths.of(request.recorded_id)
        row.num_ends = (written - (row.text >= request.most_tokens)) // row.length

    def _even_cycle(self, num_rows: int, texts: int) -> Cycle:
        known = self._cycles.get(num_rows)
        if known is not None:
            self._tell(known)
        first, end, ps, slope = self._line(self._target, num_rows, num_rows, -num_rows, texts)
        found = Cycle(texts, end, [(self._target, ps + slope * (texts - first), slope, 1)])
        self._cycles[num_rows] = found
        return found

    def _grown(self, rows: list[FlownRow], most: int, now_ps: int, each_ps: int, more_ps: int) -> int:
        """Hold blocks for `most` cycles, each when it is needed; returns for how many there are enough, maybe 0."""
        first = min([row.held - row.text for row in rows])
        if first >= most:
            return most
        kv = self._memory.target
        size = kv.limits.block_tokens
        cycles: dict[int, int] = {}  # blocks that are taken, by cycle
        for row in rows:
            for cycle in range(row.held - row.text, most, size):
                cycles[cycle] = cycles.get(cycle, 0) + 1
        total = sum(cycles.values())
        if total > kv.available_blocks:
            return first
        for row in rows:
            if row.text + most > row.held:
                self._memory.reserve(row.request, self._target, row.text + most)
                row.held = row.request.room_held[self._target]
        for cycle, count in sorted(cycles.items()):
            total -= count
            at_ps = now_ps + cycle * each_ps + more_ps * (cycle * (cycle - 1) // 2)
            self._books.note_state(at_ps, later=(self._target, total))
        return most

    # -- rounds

    def _number(self, lacking: tuple[int, ...]) -> int:
        number = self._lacks.get(lacking)
        if number is None:
            number = self._lacks[lacking] = len(self._lacking)
            self._lacking.append(lacking)
        return number

    def _node_of(self, row: FlownRow) -> RoundNode | None:
        """The next round of a row; None: it cannot be flown."""
        key = row.key
        node = row.nodes.get(key)
        if node is not None and node.needs <= row.room:
            return node
        request, position, lack = row.request, key >> LACK_BITS, key & ((1 << LACK_BITS) - 1)
        try:
            played = self._rounds.round(request.request_id, request.recorded_id, position, row.room)
            shape = self._shapes.get((played, lack))
            if shape is None:
                shape = self._shapes[played, lack] = self._shape(played, self._lacking[lack])
        except Exception:  # noqa: BLE001 - whoever asks the policy is told
            return None
        node = RoundNode(shape, position)
        self._nodes.append(node)
        if row.room >= played.needs:
            row.nodes[key] = node
        return node

    def _shape(self, played: PlayedRound, lacking: tuple[int, ...]) -> Shape:
        """Raises UnfitError where members do not take turns, or a cache that takes part lacks much."""
        held = [-MOST_LACKING - 1] * len(self._keeps)
        for level, tokens in zip(self._levels, lacking, strict=True):
            held[level] = -tokens
        *below, _ = played.ops
        for place, op in enumerate(below):
            if op.drafts == bool(place % 2) or op.level != below[place % 2].level:
                raise UnfitError
        slots = tuple([self._slot(op, held) for op in played.ops])
        wanted = max([slot.wanted for slot in slots])
        if wanted >= MOST_ROWS:  # sums of as many rows have room in a field
            raise UnfitError
        sums = 0
        for slot in slots:
            if slot.level >= self._num_free:
                sums = (sums << FIELD_BITS | slot.new) << FIELD_BITS | slot.held + 2 * MOST_LACKING
                sums = sums << FIELD_BITS | slot.context
        members = tuple([(slot.level, slot.drafts, slot.drafted * (slot.level >= self._num_free)) for slot in slots])
        pattern = self._patterns.setdefault(members, len(self._patterns))
        after = tuple([played.committed - held[level] for level in self._levels])
        needs: list[tuple[int, int, int]] = []
        most: dict[int, int] = {}
        for place, slot in enumerate(slots):
            for level in (slot.level, self._target) if place < len(slots) - 1 else (slot.level,):
                if self._keeps[level] and slot.wanted > most.get(level, 0):
                    most[level] = slot.wanted
                    needs.append((place, level, slot.wanted))
        sums = (sums << FIELD_BITS | pattern) << FIELD_BITS | 1
        return Shape(played, slots, tuple(needs), wanted, pattern, sums, self._number(after))

    def _slot(self, op: FixedOp, held: list[int]) -> Slot:
        """An operation, after which caches hold what `held` says then."""
        level, drafts, _, asked, drafted, pending, first, accepted, _, _ = op
        if not self._keeps[level]:
            return Slot(level, drafts, 0, 0, drafted, pending, pending + asked + 1)
        if level not in self._levels:
            self._levels.append(level)
            raise UnfitError
        if held[level] < -MOST_LACKING:
            raise UnfitError
        if drafts:
            before = held[level]
            if drafted:
                held[level] = pending + drafted - 1
        else:
            before = min(held[level], first - 1)
            limit = first + accepted
            held[:] = [min(tokens, limit) for tokens in held]
            held[level] = limit
        return Slot(level, drafts, pending - before, before, drafted, pending, pending + asked + 1)

    # -- blocks

    def _reserve(self, rows: list[FlownRow], cycle: Cycle, more: int, now_ps: int) -> bool:
        """Hold blocks for a cycle, operation by operation; False: memory may be short, and nothing has changed."""
        short = [row for row in rows if row.text + row.node.wanted > row.held]
        most = max([row.node.wanted for row in short])
        for level in self._levels:
            if not self._memory.has_blocks(level, len(short), most):
                return False
        if len(short) > 1:
            short.sort(key=_order)
        last, needs = len(cycle.ops) - 1, []
        for number, row in enumerate(short):
            request, text, own_last = row.request, row.text, len(row.node.shape.slots) - 1
            for index, (place, level, tokens) in enumerate(row.node.shape.needs):
                if text + tokens > request.room_held[level]:
                    needs.append((last if place == own_last else place, number, index, request, level, text + tokens))
        needs.sort()
        place, at_ps = 0, now_ps
        for index, (at, _, _, request, level, tokens) in enumerate(needs):
            while place < at:
                _, ps, slope, _ = cycle.ops[place]
                at_ps += ps + slope * more
                place += 1
            self._memory.reserve(request, level, tokens)
            if index + 1 == len(needs) or needs[index + 1][0] != at:
                self._books.note_state(at_ps)
        for row in short:
            row.held = self._held(row.request)
        return True

    # -- the end of a flight

    def _land(self, row: FlownRow) -> bool:
        """Let a request be what it is after the rounds that it flew; returns whether it goes on."""
        asked, books, request = self._asked, self._books, row.request
        count = row.text - request.num_text
        if not count:
            return True
        for level, tokens in zip(self._levels, self._lacking[row.key & ((1 << LACK_BITS) - 1)], strict=False):
            request.cached[level] = row.text - tokens
        asked.load.context_tokens += count
        before, first = request.num_answer, request.num_first or (row.length if row.num_ends else MOST_TEXT)
        books.num_emitted += count
        books.num_cycled += max(before + count - max(before, first), 0)
        request.num_noted += count
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
        row.num_ends = 0
        if row.text < request.most_tokens:
            return True
        asked.ready.remove(request)
        asked.end(request)
        return False

    def close(self) -> None:
        """Tell the books of what ran, the recorder of what was judged, and count what was modelled."""
        self._tell_cycles()
        recorder = self._books.recorder
        if self._num_even:
            recorder.judged(self._target, 0, 0, self._num_even, self._num_even)
            self._num_even = 0
        for node in self._nodes:
            times, node.times = node.times, 0
            for op in node.shape.round.ops if times else ():
                self._asked.num_modelled += times * op.modelled
                if not op.drafts:
                    recorder.judged(op.level, times * op.judged, times * op.accepted, times * op.own, times)


def _order(row: FlownRow) -> int:
    return row.request.order


def _steps_before(left_ps: float, each_ps: int, more_ps: int, most: int) -> int:
    """How many steps end before `left_ps` are over, at most `most`; the first takes `each_ps`, each other more."""
    if most * each_ps + more_ps * (most * (most - 1) // 2) < left_ps:
        return most
    low, high = 0, most  # so many end in time, and so many do not
    while high - low > 1:
        middle = (low + high) // 2
        if middle * each_ps + more_ps * (middle * (middle - 1) // 2) < left_ps:
            low = middle
        else:
            high = middle
    return low
