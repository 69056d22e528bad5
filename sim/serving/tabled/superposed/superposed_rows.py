"""Requests that decode side by side, each a row of numbers known to its end: what they cost together is a sum.

A **beat** is a cycle in which each row runs its next round. Letters: S slots below the target, L levels.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from ...engine.replica_memory import ReplicaMemory
from ..tabled_request import TabledRequest
from .round_paths import RoundPaths
from .round_shapes import FEATURES, HELD, NEW, ROWS

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
        blocks: `[L, S + 1, N]` held in each slot.
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
        held_blocks: `[L]` that the rows hold together.
        lacking: by beat, whether a row catches up in it.
    """

    def __init__(self, paths: RoundPaths, memory: ReplicaMemory) -> None:
        self.rows: dict[TabledRequest, SuperposedRow] = {}
        self.beat = 0
        self.held_blocks = [0] * len(memory.members)
        self.lacking: set[int] = set()
        self._paths = paths
        self._shapes = paths.shapes
        self._sizes = [0 if kv is None else kv.limits.block_tokens for kv in memory.members]
        self._num_slots = 0
        self._first = 0  # beat of the first column
        self._number = 0
        self._features = np.zeros((0, FEATURES, WIDTH), dtype=np.int64)
        self._blocks = np.zeros((0, 0, WIDTH), dtype=np.int64)

    def join(self, request: TabledRequest) -> None:
        """A request begins a round in the next beat; raises UnfitRoundError, then nothing has changed."""
        row = SuperposedRow(request, self._paths.of(request), self.beat, self._number)
        self._number += 1
        self.rows[request] = row
        for level, size in enumerate(self._sizes):
            if size:
                self.held_blocks[level] += request.room_held[level] // size
        if self._shapes.num_slots > self._num_slots:
            self._num_slots = self._shapes.num_slots
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
        self._num_slots = 0

    def leave(self, row: SuperposedRow) -> None:
        """A row is done."""
        del self.rows[row.request]
        for level, size in enumerate(self._sizes):
            if size:
                self.held_blocks[level] -= row.request.room_held[level] // size

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
        """`[beats][S + 1][4]` of the next beats."""
        column = self.beat - self._first
        found: list[list[list[int]]] = self._features[:, :, column : column + beats].transpose(2, 0, 1).tolist()
        return found

    def blocks(self, level: int, beats: int) -> NDArray[np.int64]:
        """`[S + 1, beats]` blocks of a member that the rows hold in the next beats."""
        column = self.beat - self._first
        found: NDArray[np.int64] = self._blocks[level, :, column : column + beats]
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
        row.features = found = features[:, :, row.shapes]
        held = found[:, ROWS] * texts
        if shapes.drafter >= 0 and not self._sizes[shapes.drafter]:
            held[0 : self._num_slots : 2] = 0
        found[:, HELD] += held
        row.blocks = np.zeros((len(self._sizes), *found.shape[::2]), dtype=np.int64)
        chain = {shapes.drafter, shapes.judge, len(self._sizes) - 1}
        for level, size in enumerate(self._sizes):
            if not size:
                continue
            row.blocks[level] = request.room_held[level] // size
            if level in chain:
                tokens = wanted[level][:, row.shapes] + texts
                before = np.concatenate(([request.room_held[level]], tokens[-1, :-1]))
                tokens = np.maximum(tokens, np.maximum.accumulate(before))
                row.blocks[level] = -(-np.minimum(tokens, request.most_tokens) // size)
        for level, first in ((shapes.drafter, 0), (shapes.judge, 1)):
            if level >= 0 and self._sizes[level]:
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
        self._features = np.zeros((self._num_slots + 1, FEATURES, WIDTH), dtype=np.int64)
        self._blocks = np.zeros((len(self._sizes), self._num_slots + 1, WIDTH), dtype=np.int64)
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


def block_ps(blocks: NDArray[np.int64], durations_ps: Sequence[Sequence[int]], first: int) -> int:
    """Blocks `[S + 1, beats]` beyond `first`, each times the picoseconds `[beats][S + 1]` of its slot, added up.

    The last beat may have fewer slots.
    """
    total = 0
    for held, lasted in zip(blocks.T.tolist(), durations_ps, strict=False):
        total += sum((now - first) * ps for now, ps in zip(held, lasted, strict=False))
    return total
