"""Requests that decode side by side, each a row of numbers known to its end: what they cost together is a sum.

A **beat** is a cycle in which each row runs its next round. Letters: S slots below the target, L levels.
"""

from math import inf

import numpy as np
from numpy.typing import NDArray

from ...engine.replica_memory import ReplicaMemory
from ..tabled_request import TabledRequest
from .round_paths import RoundPaths
from .round_shapes import FEATURES, HELD, NEW, ROWS, UnfitRoundError

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
