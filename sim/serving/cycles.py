"""What a cycle of a batch takes: sums over its rows, looked up by these sums where all rows do the same."""

from ...decoding.pool import Pool
from .charges import ServingCharges, later_forwards
from .flown import LACKS_MUCH, FlownRow

MOST_CYCLES = 1 << 14


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


class Cycles:
    """The cycles of one replica; the books are told of what members were busy with.

    Args:
        pool: the members.
        charges: seconds of operations.
        num_free: model-free members, which come first in the pool.
        budget: tokens that a forward is fed at most.
        busy: `[L]` picoseconds and forwards of each member, which grow.

    Attributes:
        by_key: those that are known of rows of one pattern, by the sums of these; see `known`.
    """

    def __init__(self, pool: Pool, charges: ServingCharges, num_free: int, budget: int, busy: list[list[int]]) -> None:
        self._names = pool.names
        self._target = pool.target_level
        self._forward_ps, self._lines, self._lookup_ps = charges.forward_ps, charges.lines, charges.looked_up(1)
        self._num_free = num_free
        self._budget = budget
        self._busy = busy
        self.by_key: dict[int, Cycle] = {}

    def known(self, key: int, rows: list[FlownRow], texts: int) -> Cycle | None:
        """That of rows of one pattern; None: an operation might be fed more than the budget."""
        known = self.by_key.get(key)
        if known is not None and known.start <= texts < known.end:
            return known
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
        """That of rows of several patterns, for these texts alone; None as well where not the same members verify."""
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
                    member, sums, lengths = below[place]
                    if member != level:
                        return None
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
                done = max(lengths)[0]
                ps += sum(
                    [repeats * each_ps for _, repeats, each_ps in later_forwards(forward_ps, names[level], lengths)]
                )
            ops.append((level, ps, 0, done))
        return Cycle(texts, texts + 1, ops)

    def even(self, num_rows: int, texts: int) -> tuple[float, int, int]:
        """A step of the target alone: picoseconds, and for each token more up to `end` tokens; (end, those, these)."""
        first, end, ps, slope = self._line(self._target, num_rows, num_rows, -num_rows, texts)
        return end, ps + slope * (texts - first), slope

    def tell_once(self, ops: list[tuple[int, int, int, int]]) -> None:
        """Tell the books of a cycle that was flown once."""
        for level, ps, _, forwards in ops:
            if forwards:  # lookups are nobody's
                self.tell_busy(level, ps, forwards)

    def _told(self, cycle: Cycle) -> None:
        """Tell the books of what members were busy with."""
        times, tokens = cycle.times, cycle.tokens
        for level, ps, slope, forwards in cycle.ops:
            if forwards:
                self.tell_busy(level, times * ps + slope * tokens, times * forwards)
        cycle.times = cycle.tokens = 0

    def tell(self) -> None:
        """Tell the books of all cycles that were flown since they were told."""
        for cycle in self.by_key.values():
            self._told(cycle)
        self.by_key.clear()

    def tell_busy(self, level: int, ps: int, num_forwards: int) -> None:
        """Tell the books of forwards, which took so many picoseconds in all."""
        busy = self._busy[level]
        busy[0] += ps
        busy[1] += num_forwards


def sized(rows: list[FlownRow]) -> tuple[int, int, bool, bool]:
    """Of the next cycle: its key, tokens of all texts, whether rows differ, and whether one is short."""
    key = texts = 0
    pattern, is_short = rows[0].node.pattern, False
    is_mixed = pattern == LACKS_MUCH
    for row in rows:
        node, text = row.node, row.text
        key += node.sums
        texts += text
        if node.pattern != pattern:
            is_mixed = True
        if text + node.wanted > row.held:
            is_short = True
    return key, texts, is_mixed, is_short


def steps_before(left_ps: float, each_ps: int, more_ps: int, most: int) -> int:
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
