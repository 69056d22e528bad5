"""Beats that follow one another while nobody comes or goes: what each of their operations takes, worked out at once."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ....cost.base import CostRangeError
from ..tabled_charges import TabledCharges
from .round_shapes import ROWS, RoundShapes
from .superposed_rows import SuperposedRows


class Beats(NamedTuple):
    """What beats take. Letters: N beats, S slots below the target.

    Attributes:
        slots_ps: `[N][S + 1]` of each operation, the target's last.
        forwards: `[N]` of the member that drafts, and of the one that judges below the target.
    """

    slots_ps: list[list[int]]
    forwards: list[tuple[int, int]]


class Flight:
    """What a replica is about to run, or runs: whole beats, and perhaps what is below the target in one more.

    Attributes:
        start_ps: when it begins.
        beats: what they take, one more than `count` if there is one.
        ends_ps: `[N]` when each beat ends.
        count: whole beats.
        stops_below: whether it ends where the target's step in the beat after these begins.
    """

    __slots__ = ("beats", "count", "ends_ps", "start_ps", "stops_below")

    def __init__(self, start_ps: int, beats: Beats, count: int, *, stops_below: bool) -> None:
        self.start_ps = start_ps
        self.beats = beats
        self.ends_ps = list(accumulate(map(sum, beats.slots_ps), initial=start_ps))[1:]
        self.count = count
        self.stops_below = stops_below

    @property
    def end_ps(self) -> int:
        """When all of it has run."""
        if self.stops_below:
            return self.below_ps(self.count)
        return self.ends_ps[self.count - 1]

    def drop(self, count: int) -> None:
        """Leave out the first so many beats."""
        self.start_ps = self.ends_ps[count - 1]
        self.beats = Beats(self.beats.slots_ps[count:], self.beats.forwards[count:])
        del self.ends_ps[:count]
        self.count -= count

    def below_ps(self, place: int) -> int:
        """When the operations below the target are over in a beat."""
        return self.ends_ps[place] - self.beats.slots_ps[place][-1]


def beats_of(rows: SuperposedRows, charges: TabledCharges, shapes: RoundShapes, count: int, budget: int) -> Beats:
    """The next beats, up to one with a forward that would be fed more than `budget` tokens, or takes no time."""
    beats = Beats([], [])
    careful = len(rows.rows) * (shapes.most_new + 1) > budget
    for place, slots in enumerate(rows.features(count)):
        beat = rows.beat + place
        if (careful or beat in rows.lacking) and not _fits(slots, budget):
            break
        try:
            slots_ps, drafted, judged = _beat(rows, charges, shapes, beat, slots)
        except CostRangeError:
            if place:  # it may never come to that
                break
            raise
        if not all(ps or not slot[ROWS] for ps, slot in zip(slots_ps, slots, strict=True)):
            break  # what comes at the instant of an operation that takes no time may come before it or after it
        beats.slots_ps.append(slots_ps)
        beats.forwards.append((drafted, judged))
    return beats


def _fits(slots: Sequence[Sequence[int]], budget: int) -> bool:
    """Whether no forward of a beat is fed more; with room for rows that draft nothing."""
    return all(num_rows + new_tokens <= budget for num_rows, new_tokens, *_ in slots)


def _beat(
    rows: SuperposedRows, charges: TabledCharges, shapes: RoundShapes, beat: int, slots: Sequence[Sequence[int]]
) -> tuple[list[int], int, int]:
    """Picoseconds of each operation of a beat, and forwards of drafter and judge."""
    slots_ps = [0] * len(slots)
    drafted = judged = 0
    most, level = shapes.most_drafted, shapes.drafter
    for slot in range(len(slots) - 1):
        num_rows, new_tokens, held, tokens = slots[slot]
        if not num_rows:
            break
        if slot % 2:
            slots_ps[slot] = charges.forward(shapes.judge, num_rows, new_tokens, held)
            judged += 1
        elif level < charges.num_free:
            slots_ps[slot] = num_rows * charges.lookup_ps
        else:
            first_ps = charges.forward(level, num_rows, new_tokens, held)
            if tokens == num_rows * most:
                middle = held + new_tokens + num_rows * (most - 2) // 2
                later_ps = (most - 1) * charges.forward(level, num_rows, num_rows, middle) if most > 1 else 0
                drafted += most
            else:
                running = rows.drafts(beat, slot)
                later_ps = charges.later(level, running)
                drafted += max(running)[0]
            slots_ps[slot] = first_ps + later_ps
    num_rows, new_tokens, held, _ = slots[-1]
    slots_ps[-1] = charges.forward(len(charges.names) - 1, num_rows, new_tokens, held)
    return slots_ps, drafted, judged
