"""Many cycles of requests whose rounds are known, added up at once; equal to single steps.

Requests that decode side by side, each a row of numbers known to its end: what they cost together is a sum.

A **beat** is a cycle in which each row runs its next round. Letters: S slots below the target, L levels.

What the operations of superposed rows take, beat after beat. Letters: N beats, S slots below the target.

Beats that follow one another while nobody comes or goes: what each of their operations takes, worked out at once.

Where requests stand that were superposed: their numbers, as if every operation had run by itself.

Cycles of a replica whose requests are superposed: planned many at once, and written down as sums.
"""

from bisect import bisect_left, bisect_right
from itertools import accumulate
from math import inf
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runs.serving import exact_dot
from ..cost.base import CostRangeError
from .limits import EngineLimits
from .numbers import RequestQueue, TabledBatch, TabledBooks, TabledCharges, TabledRequest
from .replica_memory import ReplicaMemory
from .round_shapes import FEATURES, HELD, NEW, ROWS, RoundShapes, UnfitRoundError
from .running import Moment
from .shared_paths import RoundPaths
from .single_ops import Going, SingleOps

WIDTH = 256  # beats that are added up ahead


class SuperposedRow:
    """A request with all rounds that it still has; see `RoundPaths.of`.

    Attributes:
        request: which.
        shapes, texts, positions: of its rounds.
        beat: of the first one.
        ends: beat after the last one.
        number: of the row, in the order in which they joined.
        features: `[S + 1, 4, N]`.
        blocks: `[L', S + 1, N]` held in each slot, of the members that run (`SuperposedRows.levels`).
    """

    __slots__ = ("beat", "blocks", "ends", "features", "number", "positions", "request", "shapes", "texts")

    features: NDArray[np.int64]
    blocks: NDArray[np.int64]

    def __init__(
        self, request: TabledRequest, paths: tuple[list[int], list[int], list[int]], beat: int, number: int
    ) -> None:
        self.request = request
        self.shapes, self.texts, self.positions = paths
        self.beat = beat
        self.ends = beat + len(self.shapes)
        self.number = number


class SuperposedRows:
    """Mutated by `join`, `pass_beats` and `clear`.

    Args:
        paths: of the requests.
        memory: of the replica.

    Attributes:
        rows: by request.
        beat: the next one.
        held_blocks: `[L]` that the rows hold together, of members that run.
        levels: of the members that run.
        num_slots: S of the rows.
        lacking: beats in which a row catches up.
    """

    def __init__(self, paths: RoundPaths, memory: ReplicaMemory) -> None:
        self.rows: dict[TabledRequest, SuperposedRow] = {}
        self.beat = 0
        self.held_blocks = [0] * len(memory.members)
        self.levels: list[int] = []
        self.lacking: set[int] = set()
        self._paths = paths
        self._shapes = paths.shapes
        self._sizes = [0 if kv is None else kv.limits.block_tokens for kv in memory.members]
        self.num_slots = 0
        self._first = 0  # beat of the first column
        self._number = 0
        self._features = np.zeros((0, FEATURES, WIDTH), dtype=np.int64)
        self._blocks = np.zeros((0, 0, WIDTH), dtype=np.int64)

    def join(self, request: TabledRequest) -> None:
        """A request begins a round in the next beat; raises UnfitRoundError, then nothing has changed."""
        if request.arrival.depths:
            raise UnfitRoundError  # others follow in the midst of its rounds, and find what it has written
        row = SuperposedRow(request, self._paths.of(request), self.beat, self._number)
        self._number += 1
        self.rows[request] = row
        shapes, sizes = self._shapes, self._sizes
        known = self.levels
        self.levels = [level for level in (shapes.drafter, shapes.judge, len(sizes) - 1) if level >= 0 and sizes[level]]
        for level in self.levels:
            joining = (request,) if level in known else self.rows
            self.held_blocks[level] += sum([one.room_held[level] for one in joining]) // sizes[level]
        if shapes.num_slots > self.num_slots or len(self.levels) != len(self._blocks):
            self.num_slots = shapes.num_slots
            for other in self.rows.values():
                self._lay_out(other)
            self._add_up()
        else:
            self._lay_out(row)
            self._add(row)

    def clear(self) -> None:
        """All rows leave."""
        self.rows.clear()
        self.lacking.clear()
        self.held_blocks = [0] * len(self.held_blocks)
        self.levels = []
        self.num_slots = 0

    def leave(self, row: SuperposedRow) -> None:
        """A row is done."""
        del self.rows[row.request]
        for level in self.levels:
            self.held_blocks[level] -= row.request.room_held[level] // self._sizes[level]

    def pass_beats(self, beats: int) -> list[SuperposedRow]:
        """So many beats are over; returns the rows that are done, which are still there."""
        self.beat += beats
        beat = self.beat
        return [row for row in self.rows.values() if row.ends == beat]

    def beats_left(self) -> int:
        """Beats until the first row is done, >= 1, as far as they are added up; there must be a row."""
        if self.beat >= self._first + WIDTH:
            self._add_up()
        return min(self._first + WIDTH, min(row.ends for row in self.rows.values())) - self.beat

    def features(self, beats: int) -> list[list[list[int]]]:
        """`[S + 1][4][beats]` of the next beats."""
        column = self.beat - self._first
        found: list[list[list[int]]] = self._features[:, :, column : column + beats].tolist()
        return found

    def blocks(self, place: int, beats: int) -> NDArray[np.int64]:
        """`[S + 1, beats]` blocks that the rows hold in the next beats, of the member at a place of `levels`."""
        column = self.beat - self._first
        found: NDArray[np.int64] = self._blocks[place, :, column : column + beats]
        return found

    def drafts(self, beat: int, slot: int) -> list[tuple[int, int]]:
        """Lengths of the drafts of a slot, and tokens of text and pending ones before each."""
        found = []
        for row in self.rows.values():
            place = beat - row.beat
            lengths = self._shapes.shapes[row.shapes[place]].lengths
            if slot < len(lengths) - 1 and lengths[slot][0]:
                drafted, pending = lengths[slot]
                found.append((drafted, row.texts[place] + pending))
        return found

    def in_order(self) -> list[SuperposedRow]:
        """As the loop has them: those that came to the target first in the last round, in the one before, ..."""
        return sorted(self.rows.values(), key=lambda row: self._rank(row, self.beat))

    def in_step_order(self) -> list[SuperposedRow]:
        """As they come to the target in the next beat."""
        return sorted(self.rows.values(), key=lambda row: self._rank(row, self.beat + 1))

    def _rank(self, row: SuperposedRow, beat: int) -> tuple[tuple[float, ...], int]:
        shapes = self._shapes.shapes
        history = [len(shapes[number].slots) for number in row.shapes[: beat - row.beat]]
        return (*reversed(history), inf), row.number

    def _lay_out(self, row: SuperposedRow) -> None:
        """Work out what a row feeds and holds."""
        features, wanted = self._shapes.tables()
        request, shapes = row.request, self._shapes
        texts = np.array(row.texts[:-1], dtype=np.int64)
        row.features = found = features.take(row.shapes, axis=2)
        held = found[:, ROWS] * texts
        if shapes.drafter >= 0 and not self._sizes[shapes.drafter]:
            held[0 : self.num_slots : 2] = 0
        found[:, HELD] += held
        tokens = wanted[self.levels].take(row.shapes, axis=2)
        tokens += texts
        before = np.empty((len(self.levels), 1, len(texts)), dtype=np.int64)
        before[:, 0, 0] = [request.room_held[level] for level in self.levels]
        before[:, 0, 1:] = tokens[:, -1, :-1]
        np.maximum.accumulate(before, axis=2, out=before)
        np.maximum(tokens, before, out=tokens)
        np.minimum(tokens, request.most_tokens, out=tokens)
        sizes = [self._sizes[level] for level in self.levels]
        row.blocks = -(-tokens // (sizes[0] if len(set(sizes)) == 1 else np.array(sizes)[:, None, None]))
        for level, first in ((shapes.drafter, 0), (shapes.judge, 1)):
            if level in self.levels:
                self._catch_up(row, level, first)

    def _catch_up(self, row: SuperposedRow, level: int, slot: int) -> None:
        """A member below the target reads what its cache lacks where it runs first."""
        shapes = self._shapes.shapes
        for place, number in enumerate(row.shapes):
            if slot < len(shapes[number].slots) - 1:
                lacks = int(row.features[slot, HELD, place]) - row.request.cached[level]
                if lacks > 0:
                    row.features[slot, NEW, place] += lacks
                    row.features[slot, HELD, place] -= lacks
                    self.lacking.add(row.beat + place)
                return

    def _add_up(self) -> None:
        """Add all rows up, from the next beat on."""
        self._first = self.beat
        self.lacking = {beat for beat in self.lacking if beat >= self.beat}
        self._features = np.zeros((self.num_slots + 1, FEATURES, WIDTH), dtype=np.int64)
        self._blocks = np.zeros((len(self.levels), self.num_slots + 1, WIDTH), dtype=np.int64)
        for row in self.rows.values():
            self._add(row)

    def _add(self, row: SuperposedRow) -> None:
        if self.beat >= self._first + WIDTH:
            self._add_up()
            return
        begins, ends = max(row.beat, self._first), min(row.ends, self._first + WIDTH)
        columns = slice(begins - self._first, ends - self._first)
        places = slice(begins - row.beat, ends - row.beat)
        self._features[:, :, columns] += row.features[:, :, places]
        self._blocks[:, :, columns] += row.blocks[:, :, places]


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


MOST_SUM = 2**62  # that numpy adds up


class Flight:
    """What a replica is about to run, or runs: whole beats, and perhaps what is below the target in one more.

    Attributes:
        start_ps: when it begins.
        times: of the beats, one more than `count` if there is one.
        ends_ps: when each beat ends.
        count: whole beats.
        stops_below: whether it ends where the target's step in the beat after these begins.
    """

    __slots__ = ("count", "ends_ps", "start_ps", "stops_below", "times")

    def __init__(self, start_ps: int, times: SlotTimes, count: int, *, stops_below: bool) -> None:
        self.start_ps = start_ps
        self.times = times
        self.ends_ps = list(accumulate(times.beats_ps(times.count), initial=start_ps))
        del self.ends_ps[0]
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
        self.times.drop(count)
        del self.ends_ps[:count]
        self.count -= count

    def below_ps(self, place: int) -> int:
        """When the operations below the target are over in a beat."""
        return self.ends_ps[place] - self.times.slots_ps[-1][place]


def block_ps(blocks: NDArray[np.int64], lasted_ps: NDArray[np.int64]) -> int:
    """The sum of products of blocks, which never become fewer, and of the picoseconds that they were held."""
    if int(blocks[-1, -1]) * int(lasted_ps.sum()) < MOST_SUM:
        return int(np.vdot(blocks, lasted_ps))
    return exact_dot(blocks.ravel(), lasted_ps.ravel())


class Standing:
    """Tells requests, memory and books how far rows have come.

    Args:
        memory: of the replica.
        books: of the replica.
        rows: of the replica.
        shapes: of the rounds.
    """

    def __init__(self, memory: ReplicaMemory, books: TabledBooks, rows: SuperposedRows, shapes: RoundShapes) -> None:
        self._memory = memory
        self._books = books
        self._shapes = shapes
        self._rows = rows

    def between_rounds(self, row: SuperposedRow, place: int, began_ps: int) -> None:
        """Let a request stand before a round.

        Args:
            row: of the request.
            place: of the round that comes next; 0: nothing has changed.
            began_ps: when the round before was over.
        """
        if not place:
            return
        request, shape = row.request, self._shapes.shapes[row.shapes[place - 1]]
        text, position = row.texts[place], row.positions[place]
        request.num_text, request.position = text, position
        request.budget = min(request.most_answer, request.most_tokens - text + position)
        request.out_at_ps = began_ps
        for level, lacks in enumerate(shape.after):
            if lacks is not None:
                request.cached[level] = text - lacks
        self._hold(row, place - 1)
        self._books.note_tokens(request)
        self._memory.commit(request)

    def before_target(self, row: SuperposedRow, place: int) -> None:
        """Let a request stand before the last operation of a round; it stands before the round."""
        request = row.request
        request.round, request.step = self._shapes.shapes[row.shapes[place]].round, 0
        for op in request.round.ops[:-1]:
            self._books.num_modelled += op.modelled
            if op.drafts:
                request.draft(op, keeps=self._memory.members[op.level] is not None)
            else:
                self._books.judged(op.level, op.judged, op.accepted, op.own, 1)
                request.judge(op)
        self._hold(row, place)

    def _hold(self, row: SuperposedRow, place: int) -> None:
        """Tell memory which of the blocks that were taken are a request's."""
        held = row.blocks[:, -1, place].tolist()
        for level, blocks in zip(self._rows.levels, held, strict=True):
            self._memory.hold(row.request, level, blocks)


# Beats that are worked out at once, of several rows and of one: a request that comes makes the rest void.
MOST_BEATS, MOST_BEATS_ALONE = 32, 64


class Superposition:
    """Plans flights and steps of superposed requests, and says what came of them.

    Args:
        index: of the replica.
        limits: of it.
        paths: of its requests.
        queue: takes the requests where operations run one by one.
        batch, memory, charges, books, ops: of the replica.
        moment: of the run.

    Attributes:
        flight: that is planned or runs.
        is_below_over: whether of the present beat only the target's step is left.
        unfit: requests that cannot be superposed.
    """

    def __init__(
        self,
        index: int,
        limits: EngineLimits,
        *,
        paths: RoundPaths,
        queue: RequestQueue,
        batch: TabledBatch,
        memory: ReplicaMemory,
        charges: TabledCharges,
        books: TabledBooks,
        ops: SingleOps,
        moment: Moment,
    ) -> None:
        self._index = index
        self._limits = limits
        self._shapes = paths.shapes
        self._queue = queue
        self._batch = batch
        self._memory = memory
        self._charges = charges
        self._books = books
        self._ops = ops
        self._moment = moment
        self._rows = SuperposedRows(paths, memory)
        self._target = len(memory.members) - 1
        self._sizes = [0 if kv is None else kv.limits.block_tokens for kv in memory.members]
        self._standing = Standing(memory, books, self._rows, paths.shapes)
        self._clock = SlotClock(self._rows, paths.shapes, charges, limits.token_budget)
        self._caches_below = any(kv is not None and kv.limits.prefix_cache for kv in memory.members[:-1])
        self._began_ps = 0  # of the present beat
        self._noted_blocks: list[int] = []  # that rows held when the state was noted last
        self.flight: Flight | None = None
        self.is_below_over = False
        self.unfit: set[TabledRequest] = set()

    @property
    def needs_step(self) -> bool:
        """Whether the target's step comes next: its rows have come to it, or there are none."""
        return self.is_below_over or not self._rows.rows

    # -- planning

    def fly(self, now_ps: int) -> Flight | None:
        """The next beats; None: they have to run one by one, for lack of memory or of token budget."""
        rows, batch = self._rows, self._batch
        self._began_ps = now_ps
        stops = bool(batch.prefilling) or bool(batch.waiting and len(batch.running) < self._limits.max_num_seqs)
        most = MOST_BEATS_ALONE if len(rows.rows) == 1 else MOST_BEATS
        count = min(rows.beats_left(), 1 if stops else most)
        if self._caches_below and rows.beat in rows.lacking:
            count = 1  # what is read enters the prefix cache
        count = self._fitting(count)
        if not count:
            return None
        times = self._clock.times(count)
        count = times.count
        if not count:
            return None
        self._take(0, 0)
        self._noted_blocks = list(rows.held_blocks)
        self.flight = Flight(now_ps, times, count - stops, stops_below=stops)
        return self.flight

    def plan_step(self, now_ps: int) -> Going | None:
        """The target's step in the present beat; None: nobody is there, or memory is short."""
        rows, target, left = self._rows.rows, self._target, self._limits.token_budget
        num_rows = new_tokens = held = 0
        if rows:
            (num_rows,), (new_tokens,), (held,), _ = self._rows.features(1)[-1]
            self._take(-1, 0)
        left -= new_tokens
        chunks: list[tuple[TabledRequest, int]] = []
        for request in self._batch.prefilling:
            tokens = min(request.prefill_left, left)
            upto = request.cached[-1] + tokens
            if tokens > 0:
                if not self._memory.reserve(request, target, upto + (upto == request.num_text)):
                    return None
                chunks.append((request, tokens))
                left -= tokens
        chunks += self._batch.admit(left, now_ps)
        if not (rows or chunks):
            return None
        for request, tokens in chunks:
            new_tokens += tokens
            held += request.cached[-1]
        duration_ps = self._charges.forward(target, num_rows + len(chunks), new_tokens, held)
        return Going(None, self._batch.laid_out([], chunks), target, 1, now_ps, now_ps + duration_ps)

    def cut(self, at_ps: int) -> None:
        """A request has come that may be admitted: the next step of the target is planned anew."""
        flight = self.flight
        assert flight is not None
        passed = self._moment.passed(self._index)
        place = (bisect_right if passed else bisect_left)(flight.ends_ps, at_ps)
        if place < len(flight.ends_ps) and flight.below_ps(place) < at_ps + passed:
            place += 1
        if place < flight.count:
            flight.count, flight.stops_below = place, True

    def _fitting(self, count: int) -> int:
        """How many of the next beats memory suffices for."""
        for place, level in enumerate(self._rows.levels):
            kv = self._memory.members[level]
            assert kv is not None
            room = self._rows.held_blocks[level] + kv.available_blocks
            held = self._rows.blocks(place, count)[-1]
            if count and held[count - 1] > room:
                count = int(held.searchsorted(room, side="right"))
        return count

    def _take(self, slot: int, place: int) -> None:
        """Take the blocks that rows hold in a slot of one of the next beats."""
        rows = self._rows
        for index, level in enumerate(rows.levels):
            blocks = int(rows.blocks(index, place + 1)[slot, place])
            more = blocks - rows.held_blocks[level]
            if more > 0:
                enough = self._memory.take(level, more)
                assert enough, "a flight ends where memory does"
                rows.held_blocks[level] = blocks

    # -- what comes of it

    def commit_flight(self) -> None:
        """The flight is over."""
        flight, self.flight = self.flight, None
        assert flight is not None
        end_ps = flight.ends_ps[flight.count - 1] if flight.count else flight.start_ps
        self._write_down(flight, flight.count, below=flight.stops_below)
        self.is_below_over = flight.stops_below
        ended = self._pass(flight.count, end_ps)
        self._ops.end(ended, end_ps)

    def commit_step(self, going: Going) -> bool:
        """A step of the target is over; returns whether requests are superposed still."""
        end_ps, step = going.end_ps, going.step
        assert step is not None
        self._books.ran(going.level, end_ps - going.start_ps, 1)
        self.is_below_over = False
        ended: list[TabledRequest] = []
        if self._rows.rows:
            self._books.single_gaps([end_ps - self._began_ps], len(self._rows.rows))
            ended = self._pass(1, end_ps)
        begun = self._ops.commit_prefills(step, end_ps, ended)
        for request, _ in step.ending:
            self._memory.commit(request)
        self._ops.reach([request for request, _ in step.ending], end_ps)
        self._ops.end(ended, end_ps)
        return self.join(begun)

    def join(self, requests: list[TabledRequest]) -> bool:
        """Requests begin to decode; False: one of them cannot be superposed, so that nobody is."""
        for place, request in enumerate(requests):
            try:
                self._rows.join(request)
            except UnfitRoundError:
                self.unfit.add(request)
                self.dissolve()
                for other in requests[place:]:
                    self._queue.goes_on(other)
                return False
        return True

    def dissolve(self) -> None:
        """Let operations run one by one from where the rows stand."""
        rows = self._rows
        for row in rows.in_step_order() if self.is_below_over else rows.in_order():
            self._leave(row)
            if self.is_below_over:
                self._standing.before_target(row, rows.beat - row.beat)
                self._queue.waits(row.request)
            else:
                self._queue.goes_on(row.request)
        for level in rows.levels:  # what was taken of a beat that has begun
            held = sum(row.request.room_held[level] for row in rows.rows.values())
            more = rows.held_blocks[level] - held // self._sizes[level]
            if more:
                self._memory.take(level, -more)
        self.is_below_over = False
        rows.clear()

    def settle(self, *, begun: bool = True) -> None:
        """Write down the beats of the flight that are over; `begun`: take the blocks of what has begun since."""
        flight = self.flight
        if flight is None:
            return
        now_ps, passed = self._moment.now_ps, self._moment.passed(self._index)
        done = (bisect_right if passed else bisect_left)(flight.ends_ps, now_ps, hi=flight.count)
        if done:
            self._write_down(flight, done, below=False)
            self._pass(done, flight.ends_ps[done - 1])
            flight.drop(done)
        if begun:
            slot, at_ps, slots_ps = 0, flight.start_ps, [slot[0] for slot in flight.times.slots_ps]
            while slot < len(slots_ps) - 1 and at_ps + slots_ps[slot] < now_ps + passed:
                at_ps += slots_ps[slot]
                slot += 1
            self._take(slot, 0)

    def show_answers(self) -> None:
        """Answers that other requests will follow are in the prefix caches as far as they are computed now."""
        rows = self._rows
        for row in rows.rows.values():
            if row.request.arrival.answer:
                self._standing.between_rounds(row, rows.beat - row.beat, self._began_ps)

    def _write_down(self, flight: Flight, count: int, *, below: bool) -> None:
        """The first so many beats of a flight have run, and with `below` what is below the target in the next one."""
        books, rows, times = self._books, self._rows, flight.times
        begun = count + below
        slots_ps = [slot[:begun] for slot in times.slots_ps]
        target_ps = slots_ps[-1]
        books.ran(self._shapes.drafter, sum(map(sum, slots_ps[:-1:2])), sum(times.drafting[:begun]))
        books.ran(self._shapes.judge, sum(map(sum, slots_ps[1:-1:2])), sum(times.judging[:begun]))
        if below:
            target_ps[-1] = 0
        if count:
            books.ran(self._target, sum(target_ps), count)
            books.single_gaps(times.beats_ps(count), len(rows.rows))
        if begun:
            lasted_ps = np.array(slots_ps, dtype=np.int64)
            for place, level in enumerate(rows.levels):
                grown = rows.blocks(place, begun) - self._noted_blocks[level]
                books.grew(level, block_ps(grown, lasted_ps), 0)
            self._take(-1 - below, begun - 1)
        for level in rows.levels:
            kv = self._memory.members[level]
            assert kv is not None
            books.grew(level, 0, kv.used_blocks)

    def _pass(self, beats: int, end_ps: int) -> list[TabledRequest]:
        """So many beats are over; returns requests that are done, which have left."""
        rows = self._rows
        fresh = [row for row in rows.rows.values() if row.beat == rows.beat] if self._caches_below and beats else []
        if beats:
            self._began_ps = end_ps
        ended = rows.pass_beats(beats) if beats else []
        for row in fresh:
            self._standing.between_rounds(row, rows.beat - row.beat, end_ps)
        for row in ended:
            self._leave(row)
            rows.leave(row)
        return [row.request for row in ended]

    def _leave(self, row: SuperposedRow) -> None:
        """A row is superposed no more: its request stands where it is, and its rounds are counted."""
        place = self._rows.beat - row.beat
        self._standing.between_rounds(row, place, self._began_ps)
        self._books.played(row.shapes[:place])
