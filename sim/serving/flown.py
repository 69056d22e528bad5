"""Rounds of a policy that decides only by pending tokens, as numbers, requests in flight, and cycles.

Such a round follows from the recorded request, the place in its answer and the tokens that caches lack (`FixedRounds`),
so it is played once and reused as numbers. The seconds of a batch's cycle follow from sums over its rows, and are
looked up by these sums where all rows do the same.
"""

from typing import NamedTuple, TypeAlias

from ...decoding.pool import Pool
from ..charges import around_middle, later_runs
from ..rounds_once import FixedOp, FixedRounds, PlayedRound
from .charges import ServingCharges
from .requests import ServedRequest

MOST_LACKING = 256  # most tokens that caches lack of a text in a shared pattern
LACKS_MUCH = -1  # a pattern that no rows share
LACK_BITS = 20
FIELD_BITS = 24  # of a sum over the rows of a batch
MOST_ROWS = 1 << 11


class Slot(NamedTuple):
    """One operation of a round; tokens in caches are counted from the start of the round's text."""

    level: int  # of the member
    drafts: bool  # whether it drafts
    new: int  # tokens fed for the row
    held: int  # tokens in its cache then, less those of the text
    drafted: int  # tokens written
    context: int  # pending tokens before it
    wanted: int  # tokens for which blocks are held, less those of the text


class Shape(NamedTuple):
    """A round of requests with given lacks of their caches."""

    round: PlayedRound  # the round
    slots: tuple[Slot, ...]  # its operations, that of the target last
    last: int  # index of the last one
    # index of an operation, member, and tokens for which its blocks are held then, less those of the text
    needs: tuple[tuple[int, int, int], ...]
    wanted: int  # most tokens for which blocks of any member are held, less those of the text
    pattern: int  # id of the rounds with the same members and drafted tokens; LACKS_MUCH where a cache lacks much
    sums: int  # packed numbers of the slots; sums over rows of one pattern determine a cycle's seconds
    lack: int  # id of the caches' lacks where the next round begins


Nodes: TypeAlias = "dict[int | tuple[int, int], RoundNode]"


class UnfitError(Exception):
    """A round that cannot be flown."""


class RoundNode:
    """A round at a place of a recorded answer.

    Attributes:
        shape: of the round; `committed`, `ends`, `needs`, `wanted`, `pattern`, `sums` are its, or its round's.
        lack: id of the caches' lacks before it.
        key: of the place after it.
        after: the next round; None: not known yet with enough room, or the segment ends.
        times: number of plays not recorded yet.
    """

    __slots__ = ("after", "committed", "ends", "key", "lack", "needs", "pattern", "shape", "sums", "times", "wanted")

    def __init__(self, shape: Shape, position: int, lack: int) -> None:
        played = shape.round
        self.shape, self.lack = shape, lack
        self.committed, self.ends, self.needs = played.committed, played.ends, played.needs
        self.wanted, self.pattern, self.sums = shape.wanted, shape.pattern, shape.sums
        self.key = shape.lack if played.ends else (position + played.committed) << LACK_BITS | shape.lack
        self.after: RoundNode | None = None
        self.times = 0


class FlownRow:
    """A request in flight, updated when it lands.

    Attributes:
        request: the request.
        nodes: known ones of its recorded request, by place and lack, and of rounds cut by the room by these and room.
        node: its next round; of the target alone there are none.
        lack: id of the caches' lacks where it took off, and where no next round is known.
        text: its tokens.
        limit: length of its text at which the segment is full.
        held: tokens for which the blocks of every used member have room.
        until: length of its text at which it needs attention: a block is full, or others wait for the tokens.
        num_ends: segments that ended in this flight; another one began after each.
        length: tokens of a segment, once one ended.
    """

    __slots__ = ("held", "lack", "length", "limit", "node", "nodes", "num_ends", "request", "text", "until")

    node: RoundNode
    held: int
    until: int

    def __init__(self, request: ServedRequest, nodes: Nodes, lack: int) -> None:
        self.request = request
        self.nodes = nodes
        self.begin(lack)

    def begin(self, lack: int) -> None:
        """Start from the request's present state."""
        request = self.request
        self.lack = lack
        self.text = text = request.num_text
        self.limit = text + request.budget - len(request.emitted)
        self.num_ends = self.length = 0


class FlownRounds:
    """The rounds of one policy, each made when reached.

    Attributes:
        levels: members with caches that are known to be used.
        lacking: by id, tokens that the cache of each of `levels` lacks.
        nodes: all of them.
    """

    def __init__(self, pool: Pool, rounds: FixedRounds, num_free: int) -> None:
        self.levels = [pool.target_level]
        self.lacking: list[tuple[int, ...]] = []
        self.nodes: list[RoundNode] = []
        self.tokens, self.length = rounds.tokens, rounds.length
        self._target = pool.target_level
        self._keeps = [not member.model_free for member in pool.members]
        self._rounds = rounds
        self._num_free = num_free
        self._lacks: dict[tuple[int, ...], int] = {}
        self._by_request: dict[str, Nodes] = {}
        self._shapes: dict[tuple[PlayedRound, int], Shape] = {}
        self._patterns: dict[tuple[tuple[int, bool, int], ...], int] = {}

    def row(self, request: ServedRequest) -> FlownRow:
        """A row for a request in its present state, with nothing pending."""
        nodes = self._by_request.get(request.recorded_id)
        if nodes is None:
            nodes = self._by_request[request.recorded_id] = {}
        text, cached = request.num_text, request.cached
        return FlownRow(request, nodes, self._number(tuple([text - cached[level] for level in self.levels])))

    def forget(self) -> None:
        """Drop all known rounds; rows that fly them have landed."""
        self._by_request, self._lacks, self._shapes, self.lacking, self.nodes = {}, {}, {}, [], []

    def begun(self, row: FlownRow) -> RoundNode | None:
        """The first round of a row in its flight; None: it cannot be flown."""
        return self.node_at(row, len(row.request.emitted) << LACK_BITS | row.lack)

    def node_at(self, row: FlownRow, key: int) -> RoundNode | None:
        """The next round of a row at the place and lack of `key`; None: it cannot be flown."""
        node, room = row.nodes.get(key), row.limit - row.text
        if node is not None and node.needs <= room:
            return node
        node = row.nodes.get((key, room))
        if node is not None:
            return node
        request, position, lack = row.request, key >> LACK_BITS, key & ((1 << LACK_BITS) - 1)
        try:
            played = self._rounds.round(request.recorded_id, position, room)
            shape = self._shapes.get((played, lack))
            if shape is None:
                shape = self._shape(played, self.lacking[lack])
                if shape.pattern != LACKS_MUCH:
                    self._shapes[played, lack] = shape
        except Exception:  # noqa: BLE001 - raised again when the policy decides
            return None
        node = RoundNode(shape, position, lack)
        self.nodes.append(node)
        if shape.pattern != LACKS_MUCH:
            row.nodes[key if room >= played.needs else (key, room)] = node
        return node

    def _number(self, lacking: tuple[int, ...]) -> int:
        number = self._lacks.get(lacking)
        if number is None:
            number = self._lacks[lacking] = len(self.lacking)
            self.lacking.append(lacking)
        return number

    def _shape(self, played: PlayedRound, lacking: tuple[int, ...]) -> Shape:
        """Raises UnfitError where members do not alternate, or one was not known to be used."""
        held = [0] * len(self._keeps)
        for level, tokens in zip(self.levels, lacking, strict=True):
            held[level] = -tokens
        *below, _ = played.ops
        for place, op in enumerate(below):
            if op.drafts == bool(place % 2) or op.level != below[place % 2].level:
                raise UnfitError
        slots = tuple([self._slot(op, held) for op in played.ops])
        wanted = max([slot.wanted for slot in slots])
        if wanted >= MOST_ROWS:  # sums over rows fit a field
            raise UnfitError
        lacks_much = any(slot.held < -MOST_LACKING for slot in slots)
        sums = 0
        for slot in slots if not lacks_much else ():
            if slot.level >= self._num_free:
                sums = (sums << FIELD_BITS | slot.new) << FIELD_BITS | slot.held + 2 * MOST_LACKING
                sums = sums << FIELD_BITS | slot.context
        members = tuple([(slot.level, slot.drafts, slot.drafted * (slot.level >= self._num_free)) for slot in slots])
        pattern = LACKS_MUCH if lacks_much else self._patterns.setdefault(members, len(self._patterns))
        after = tuple([played.committed - held[level] for level in self.levels])
        needs: list[tuple[int, int, int]] = []
        most: dict[int, int] = {}
        for place, slot in enumerate(slots):
            for level in (slot.level, self._target) if place < len(slots) - 1 else (slot.level,):
                if self._keeps[level] and slot.wanted > most.get(level, 0):
                    most[level] = slot.wanted
                    needs.append((place, level, slot.wanted))
        if not lacks_much:
            sums = (sums << FIELD_BITS | pattern) << FIELD_BITS | 1
        return Shape(played, slots, len(slots) - 1, tuple(needs), wanted, pattern, sums, self._number(after))

    def _slot(self, op: FixedOp, held: list[int]) -> Slot:
        """An operation; updates `held`, the tokens in caches."""
        level, drafts, _, asked, drafted, pending, first, accepted, _, _ = op
        if not self._keeps[level]:
            return Slot(level, drafts, 0, 0, drafted, pending, pending + asked + 1)
        if level not in self.levels:
            self.levels.append(level)
            raise UnfitError
        if drafts:
            before = min(held[level], pending - 1)
            if drafted:
                held[level] = pending + drafted - 1
        else:
            before = min(held[level], first - 1)
            limit = first + accepted
            held[:] = [min(tokens, limit) for tokens in held]
            held[level] = limit
        return Slot(level, drafts, pending - before, before, drafted, pending, pending + asked + 1)


MOST_CYCLES = 1 << 14


class Cycle:
    """The picoseconds of cycles of a batch of rows of one pattern, by the total tokens of texts.

    Attributes:
        start, end: of the total tokens for which it holds.
        ps, slope: of the whole cycle, at `start` and for each token more.
        ops: level, picoseconds, slope and forwards of each operation.
        times, tokens: cycles flown, and tokens of their texts beyond `start`, not noted in the books yet.
    """

    __slots__ = ("end", "ops", "ps", "slope", "start", "times", "tokens")

    def __init__(self, start: int, end: float, ops: list[tuple[int, int, int, int]]) -> None:
        self.start, self.end, self.ops = start, end, ops
        self.ps, self.slope = sum([op[1] for op in ops]), sum([op[2] for op in ops])
        self.times = self.tokens = 0


class Cycles:
    """The cycles of one replica; notes busy times of members.

    Attributes:
        by_key: known ones of rows of one pattern, by their sums; see `known`.
    """

    def __init__(self, pool: Pool, charges: ServingCharges, num_free: int, budget: int, busy: list[list[int]]) -> None:
        self._names = pool.names
        self._target = pool.target_level
        self._forward_ps, self._lines, self._looked_up = charges.forward_ps, charges.lines, charges.looked_up
        self._num_free = num_free
        self._budget = budget
        self._busy = busy
        self.by_key: dict[int, Cycle] = {}

    def known(self, key: int, rows: list[FlownRow], texts: int) -> Cycle | None:
        """The cycle of rows of one pattern; None: an operation might be fed more than the budget."""
        known = self.by_key.get(key)
        if known is not None and known.start <= texts < known.end:
            return known
        start, end, count = 0, float("inf"), len(rows)
        ops: list[tuple[int, int, int, int]] = []
        for slots in zip(*[row.node.shape.slots for row in rows], strict=True):
            level, drafts, drafted = slots[0].level, slots[0].drafts, slots[0].drafted
            if level < self._num_free:
                ops.append((level, self._looked_up(count), 0, 0))
                continue
            if drafts and not drafted:
                ops.append((level, 0, 0, 0))
                continue
            new = sum([slot.new for slot in slots])
            if new > self._budget:
                return None
            lines = [(1, self._line(level, count, new, sum([slot.held for slot in slots]), texts))]
            if drafted > 1:
                doubled = 2 * sum([slot.context for slot in slots]) + count * (drafted - 2)
                for middle, times in around_middle(doubled, drafted - 1):
                    lines.append((times, self._line(level, count, count, middle, texts)))
            ps = slope = 0
            for repeats, (first, last, line_ps, line_slope) in lines:
                start, end = max(start, first), min(end, last)
                ps += repeats * (line_ps + line_slope * (texts - first))
                slope += repeats * line_slope
            ops.append((level, ps, slope, drafted or 1))
        # All from the present length of texts, as good a start as any.
        if known is not None:
            self._told(known)
        elif len(self.by_key) >= MOST_CYCLES:
            self.tell()
        found = self.by_key[key] = Cycle(texts, end, ops)
        return found

    def _line(self, level: int, num_rows: int, new: int, held: int, texts: int) -> tuple[int, float, int, int]:
        """(start, end, picoseconds at the start, slope) of a forward by the tokens of all texts, `held` beside them."""
        lines, name = self._lines, self._names[level]
        if lines is None:
            return texts, texts + 1, self._forward_ps(name, num_rows, new, held + texts), 0
        start, end, start_ps, slope_ps = lines.line(name, num_rows, new, held + texts)
        return start - held, end - held, start_ps, slope_ps

    def mixed(self, rows: list[FlownRow], texts: int) -> Cycle | None:
        """The cycle of rows of several patterns, for these texts alone; also None where verifying members differ."""
        # level; rows, new and held; lengths of drafts, and contexts before each
        below: list[tuple[int, list[int], tuple[list[int], list[int]]]] = []
        last = [0, 0, 0]
        for row in rows:
            text, slots = row.text, row.node.shape.slots
            for place, (level, drafts, new, held, drafted, context, _) in enumerate(slots):
                if place == len(slots) - 1:
                    sums = last
                else:
                    if place == len(below):
                        below.append((level, [0, 0, 0], ([], [])))
                    member, sums, later = below[place]
                    if member != level:
                        return None
                    if drafted > 1:
                        later[0].append(drafted)
                        later[1].append(text + context)
                    elif drafts and not drafted and level >= self._num_free:
                        continue
                sums[0] += 1
                sums[1] += new
                sums[2] += text + held
        ops: list[tuple[int, int, int, int]] = []
        names, forward_ps, budget = self._names, self._forward_ps, self._budget
        for level, (count, new, held), (lengths, contexts) in (*below, (self._target, last, ([], []))):
            if new > budget:
                return None
            if level < self._num_free:
                ops.append((level, self._looked_up(count), 0, 0))
                continue
            if not count:
                ops.append((level, 0, 0, 0))
                continue
            ps, done = forward_ps(names[level], count, new, held), 1
            if lengths:
                done = max(lengths)
                for some, repeats, held in later_runs(lengths, contexts):
                    ps += repeats * forward_ps(names[level], some, some, held)
            ops.append((level, ps, 0, done))
        return Cycle(texts, texts + 1, ops)

    def even(self, num_rows: int, texts: int) -> tuple[float, int, int]:
        """A step of the target alone: (end, picoseconds, picoseconds for each token more, up to `end` tokens)."""
        first, end, ps, slope = self._line(self._target, num_rows, num_rows, -num_rows, texts)
        return end, ps + slope * (texts - first), slope

    def tell_once(self, ops: list[tuple[int, int, int, int]]) -> None:
        """Note a cycle that was flown once."""
        for level, ps, _, forwards in ops:
            if forwards:  # lookups have no forwards
                self.tell_busy(level, ps, forwards)

    def _told(self, cycle: Cycle) -> None:
        """Note the busy times of a cycle."""
        times, tokens = cycle.times, cycle.tokens
        for level, ps, slope, forwards in cycle.ops:
            if forwards:
                self.tell_busy(level, times * ps + slope * tokens, times * forwards)
        cycle.times = cycle.tokens = 0

    def tell(self) -> None:
        """Note all cycles flown since the last call."""
        for cycle in self.by_key.values():
            self._told(cycle)
        self.by_key.clear()

    def tell_busy(self, level: int, ps: int, num_forwards: int) -> None:
        """Note forwards of a member, which took `ps` in total."""
        busy = self._busy[level]
        busy[0] += ps
        busy[1] += num_forwards


def sized(rows: list[FlownRow]) -> tuple[int, int, bool, list[FlownRow]]:
    """Of the next cycle: key, tokens of all texts, whether patterns differ, and rows that are short of blocks."""
    key = texts = 0
    pattern, short = rows[0].node.pattern, []
    is_mixed = pattern == LACKS_MUCH
    for row in rows:
        node, text = row.node, row.text
        key += node.sums
        texts += text
        if node.pattern != pattern:
            is_mixed = True
        if text + node.wanted > row.held:
            short.append(row)
    return key, texts, is_mixed, short


def steps_before(left_ps: int, each_ps: int, more_ps: int, most: int) -> int:
    """Steps, at most `most`, that end before `left_ps`; the first takes `each_ps`, each next one `more_ps` more."""
    if most * each_ps + more_ps * (most * (most - 1) // 2) < left_ps:
        return most
    low, high = 0, most  # `low` end in time, `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if middle * each_ps + more_ps * (middle * (middle - 1) // 2) < left_ps:
            low = middle
        else:
            high = middle
    return low
