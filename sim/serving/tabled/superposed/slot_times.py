"""What the operations of superposed rows take, beat after beat. Letters: N beats, S slots below the target."""

from math import inf
from operator import add
from typing import NamedTuple

from ....cost.base import CostRangeError
from ..tabled_charges import TabledCharges
from .round_shapes import NEW, ROWS, RoundShapes
from .superposed_rows import SuperposedRows


class SlotTimes:
    """Picoseconds of each operation of each beat.

    Attributes:
        slots_ps: `[S + 1][N]`, the target's last; 0 where nobody is in a slot.
        drafting: `[N]` forwards of the member that drafts.
        judging: `[N]` those of the one that judges below the target.
    """

    __slots__ = ("drafting", "judging", "slots_ps")

    def __init__(self, num_slots: int) -> None:
        self.slots_ps: list[list[int]] = [[] for _ in range(num_slots + 1)]
        self.drafting: list[int] = []
        self.judging: list[int] = []

    @property
    def count(self) -> int:
        """N."""
        return len(self.drafting)

    def beats_ps(self, count: int) -> list[int]:
        """Of each of the first so many beats."""
        first, *others = self.slots_ps
        total = first[:count]
        for slot in others:
            total = list(map(add, total, slot[:count]))
        return total

    def drop(self, count: int) -> None:
        """Leave out the first so many beats."""
        for values in (*self.slots_ps, self.drafting, self.judging):
            del values[:count]

    def keep(self, count: int) -> None:
        """Leave out all but the first so many beats."""
        for values in (*self.slots_ps, self.drafting, self.judging):
            del values[count:]


class _NoTimeError(Exception):
    """An operation takes no time."""


class _Alone(NamedTuple):
    """What a round of a lone row takes by its text.

    Attributes:
        least, end: for texts `least <= text < end`.
        start_ps, slope_ps: of the first slot, `start_ps + slope_ps x text`.
        others: the same of all others, the target's last; zeros of those that the round has not.
        drafting, judging: forwards below the target.
    """

    least: float
    end: float
    start_ps: int
    slope_ps: int
    others: list[tuple[int, int]]
    drafting: int
    judging: int


class SlotClock:
    """Works out what beats take. A lone row, as most are under light load, needs no sums.

    Args:
        rows: of the replica.
        shapes: of their rounds.
        charges: of the replica.
        budget: tokens that a forward is fed at most.
    """

    def __init__(self, rows: SuperposedRows, shapes: RoundShapes, charges: TabledCharges, budget: int) -> None:
        self._rows = rows
        self._shapes = shapes
        self._charges = charges
        self._budget = budget
        self._target = len(charges.names) - 1
        self._alone: dict[int, _Alone] = {}
        self._num_slots = 0

    def times(self, count: int) -> SlotTimes:
        """The next beats, up to one with a forward that would be fed more than the budget, or takes no time.

        Raises:
            CostRangeError: by the first beat; a later one may never come.
        """
        rows = self._rows
        careful = len(rows.rows) * (self._shapes.most_new + 1) > self._budget
        if len(rows.rows) == 1 and self._charges.is_lined and not careful:
            times = self._times_alone(count)
            if times is not None:
                return times
        features = rows.features(count)
        count = self._within_budget(features, count, careful=careful)
        while count:
            try:
                return self._added_up(features, count)
            except CostRangeError:
                if count == 1:
                    raise
                count //= 2
        return SlotTimes(len(features) - 1)

    def _added_up(self, features: list[list[list[int]]], count: int) -> SlotTimes:
        """So many beats of all rows; fewer where an operation takes no time: what comes then may come first or not."""
        times = SlotTimes(len(features) - 1)
        times.drafting, times.judging = [0] * count, [0] * count
        kept = count
        for slot, (num_rows, new_tokens, held, drafted) in enumerate(features):
            if count < len(num_rows):
                num_rows, new_tokens, held = num_rows[:count], new_tokens[:count], held[:count]
            if slot == len(features) - 1:
                found = self._forwards(self._target, num_rows, new_tokens, held)
            elif slot % 2:
                found = self._forwards(self._shapes.judge, num_rows, new_tokens, held)
                times.judging = [so_far + (rows > 0) for so_far, rows in zip(times.judging, num_rows, strict=True)]
            else:
                found = self._drafts(times, slot, num_rows, new_tokens, held, drafted)
            times.slots_ps[slot] = found
            if 0 in found:
                pairs = enumerate(zip(found, num_rows, strict=True))
                kept = min([kept, *(place for place, (ps, rows) in pairs if rows and not ps)])
        times.keep(kept)
        return times

    def _drafts(
        self, times: SlotTimes, slot: int, num_rows: list[int], new_tokens: list[int], held: list[int],
        drafted: list[int],
    ) -> list[int]:  # fmt: skip
        """Picoseconds of the drafts of a slot; their forwards are added to those of the beats."""
        level, most, charges = self._shapes.drafter, self._shapes.most_drafted, self._charges
        if level < charges.num_free:
            return [rows * charges.lookup_ps for rows in num_rows]
        found = self._forwards(level, num_rows, new_tokens, held)
        if most > 1:
            middle = [
                before + new + rows * (most - 2) // 2
                for before, new, rows in zip(held, new_tokens, num_rows, strict=True)
            ]
            later = self._forwards(level, num_rows, num_rows, middle)
            found = [first_ps + (most - 1) * ps for first_ps, ps in zip(found, later, strict=True)]
        forwards = [most if rows else 0 for rows in num_rows]
        for place, (rows, tokens) in enumerate(zip(num_rows, drafted, strict=False)):
            if tokens != rows * most:
                running = self._rows.drafts(self._rows.beat + place, slot)
                first_ps = charges.forward(level, rows, new_tokens[place], held[place])
                found[place] = first_ps + charges.later(level, running)
                forwards[place] = max(running)[0]
        times.drafting = list(map(add, times.drafting, forwards))
        return found

    def _forwards(self, level: int, num_rows: list[int], new_tokens: list[int], held: list[int]) -> list[int]:
        """Picoseconds of forwards, 0 where there are no rows."""
        charges = self._charges
        known, forward = charges.known, charges.forward
        found = []
        for rows, new, before in zip(num_rows, new_tokens, held, strict=True):
            line = known.get((level, rows, new))
            if line is not None and line[0] <= before < line[1]:
                found.append(line[2] + line[3] * (before - line[0]))
            else:
                found.append(forward(level, rows, new, before) if rows else 0)
        return found

    def _within_budget(self, features: list[list[list[int]]], count: int, *, careful: bool) -> int:
        """Beats until one with a forward that would be fed more than the budget."""
        rows = self._rows
        for place in range(count):
            if not (careful or (rows.lacking and rows.beat + place in rows.lacking)):
                continue
            # With room for rows that draft nothing.
            if any(slot[ROWS][place] + slot[NEW][place] > self._budget for slot in features):
                return place
        return count

    def _times_alone(self, count: int) -> SlotTimes | None:
        """The next beats of a lone row; None where an operation takes no time, or cannot be priced."""
        rows = self._rows
        if rows.num_slots != self._num_slots:
            self._num_slots, self._alone = rows.num_slots, {}
        known = self._alone
        (row,) = rows.rows.values()
        times, place = SlotTimes(rows.num_slots), rows.beat - row.beat
        ends = min([place + count, *(beat - row.beat for beat in rows.lacking if beat > rows.beat)])
        if rows.beat in rows.lacking:
            features = rows.features(1)
            if not self._within_budget(features, 1, careful=True):
                return None
            times = self._added_up(features, 1)
            if not times.count:
                return None
            place += 1
        first, *others = times.slots_ps
        try:
            for number, text in zip(row.shapes[place:ends], row.texts[place:ends], strict=True):
                alone = known.get(number)
                if alone is None or not alone[0] <= text < alone[1]:
                    alone = known[number] = self._priced(number, text)
                _, _, start_ps, slope_ps, lines, drafting, judging = alone
                first.append(start_ps + slope_ps * text)
                for slot, (start_ps, slope_ps) in zip(others, lines, strict=True):
                    slot.append(start_ps + slope_ps * text)
                times.drafting.append(drafting)
                times.judging.append(judging)
        except (CostRangeError, _NoTimeError):
            return None
        return times

    def _priced(self, number: int, text: int) -> _Alone:
        """What a round takes about a text; raises _NoTimeError for an operation that takes none."""
        shapes, charges = self._shapes, self._charges
        shape = shapes.shapes[number]
        least, end = 0.0, inf
        drafting = judging = 0
        slots: list[tuple[int, int]] = []
        for slot, ((_, new_tokens, before, _), (drafted, pending)) in enumerate(
            zip(shape.slots, shape.lengths, strict=True)
        ):
            is_target = slot == len(shape.slots) - 1
            if not is_target and not slot % 2 and shapes.drafter < charges.num_free:
                slots.append((charges.lookup_ps, 0))
                continue
            level = self._target if is_target else shapes.judge if slot % 2 else shapes.drafter
            forwards = [(1, new_tokens, before)]
            if not is_target and not slot % 2:
                drafting += drafted
                if drafted > 1:
                    forwards.append((drafted - 1, 1, pending + (drafted - 2) // 2))
            elif not is_target:
                judging += 1
            start_ps = slope_ps = 0
            for repeats, new, held in forwards:
                line = charges.line(level, 1, new, text + held)
                start_ps += repeats * (line.start_ps + line.slope_ps * (held - line.start))
                slope_ps += repeats * line.slope_ps
                least, end = max(least, line.start - held), min(end, line.end - held)
            slots.append((start_ps, slope_ps))
        if not all(start_ps + slope_ps * text for start_ps, slope_ps in slots):
            raise _NoTimeError
        *below, target = slots
        first, *others = [*below, *[(0, 0)] * (self._rows.num_slots - len(below)), target]
        return _Alone(least, end, *first, others, drafting, judging)
