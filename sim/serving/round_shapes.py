"""What a round feeds, holds and drafts, operation by operation, whoever is in it: rows of numbers that add up.

The operations of a round below the target take turns: a draft, a verification by one member, a draft ... So those of
all rows of a batch that begin a round together stand in the same **slots**, even ones draft and odd ones judge, and the
last slot is the target's. Letters: L levels, S slots below the target, R shapes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...decoding.pool import Pool
from ..played_round import FixedOp, PlayedRound

MOST_SLOTS = 24  # below the target
MOST_LACKING = 256  # tokens that a cache which ran in the round before may lack
FEATURES = 4  # of a slot: rows, tokens fed, tokens held before, tokens drafted
ROWS, NEW, HELD, DRAFTED = range(FEATURES)
NOTHING = -(10**12)  # in place of tokens, of a member that has held nothing in the round yet
# `[L]` tokens of the text that each member's cache lacks where a round begins; None: it has not run since admission.
Lacking = tuple[int | None, ...]


class Shape(NamedTuple):
    """A round of a request whose caches lack so much of its text.

    Attributes:
        round: which.
        lacking: where it begins.
        after: where the next one begins.
        slots: `[S']` of its slots, features; held tokens are less those of the text.
        wanted: `[L][S' + 1]` tokens beyond those of the text that blocks are held for, so far in the round.
        lengths: `[S']` of each slot, drafted tokens, and pending ones before.
    """

    round: PlayedRound
    lacking: Lacking
    after: Lacking
    slots: list[list[int]]
    wanted: list[list[int]]
    lengths: list[tuple[int, int]]


class UnfitRoundError(Exception):
    """A round whose operations are not laid out in slots."""


class RoundShapes:
    """Numbers of rounds, by the order in which they were first met.

    Args:
        pool: the members.

    Attributes:
        shapes: `[R]`.
        num_slots: the most that a round has.
        most_drafted: tokens of the longest draft.
        most_new: tokens that a caught up row is fed in a slot, at most.
        drafter, judge: levels of the members that run in even and odd slots; -1 until a round has one.
    """

    def __init__(self, pool: Pool) -> None:
        self.shapes: list[Shape] = []
        self.num_slots = 1
        self.most_drafted = self.most_new = 0
        self.drafter = self.judge = -1
        self._known: dict[tuple[PlayedRound, Lacking], int] = {}
        self._num_levels = len(pool.members)
        self._target = pool.target_level
        self._keeps = [not member.model_free for member in pool.members]
        nothing = np.zeros((0, FEATURES, 0), dtype=np.int64)
        self._tables = nothing, nothing
        self._num_written = 0

    def of(self, played: PlayedRound, lacking: Lacking) -> int:
        """Number of a shape; raises UnfitRoundError."""
        key = played, lacking
        known = self._known.get(key)
        if known is None:
            self.shapes.append(self._shape(played, lacking))
            known = self._known[key] = len(self.shapes) - 1
        return known

    def tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Features `[S + 1, 4, R']`, and wanted tokens `[L, S + 1, R']`, of at least R shapes."""
        features, wanted = self._tables
        count, slots = len(self.shapes), self.num_slots
        if features.shape[0] != slots + 1 or features.shape[2] < count:
            features = np.zeros((slots + 1, FEATURES, 2 * count), dtype=np.int64)
            wanted = np.full((self._num_levels, slots + 1, 2 * count), NOTHING, dtype=np.int64)
            self._tables, self._num_written = (features, wanted), 0
        for place in range(self._num_written, count):
            shape = self.shapes[place]
            *below, target = shape.slots
            if below:
                features[: len(below), :, place] = below
            features[slots, :, place] = target
            for level, tokens in enumerate(shape.wanted):
                wanted[level, : len(below), place] = tokens[:-1]
                wanted[level, len(below) : -1, place] = tokens[-2] if below else NOTHING
                wanted[level, -1, place] = tokens[-1]
        self._num_written = count
        return self._tables

    def _shape(self, played: PlayedRound, lacking: Lacking) -> Shape:
        held = [None if tokens is None else -tokens for tokens in lacking]
        wanted = [[NOTHING] * len(played.ops) for _ in lacking]
        slots, lengths = [], []
        for slot, op in enumerate(played.ops):
            last = slot == len(played.ops) - 1
            if not last:
                self._check(slot, op)
            slots.append(self._drafts(op, held) if op.drafts else self._judges(op, held))
            lengths.append((op.drafted, op.pending))
            for level in {op.level, self._target}:
                if self._keeps[level]:
                    wanted[level][slot:] = [max(wanted[level][slot], op.pending + op.asked + 1)] * (
                        len(played.ops) - slot
                    )
        after = tuple(None if tokens is None else played.committed - tokens for tokens in held)
        if any(tokens is not None and tokens > MOST_LACKING for tokens in after):
            raise UnfitRoundError
        self.num_slots = max(self.num_slots, len(slots) - 1)
        self.most_drafted = max(self.most_drafted, *(drafted for drafted, _ in lengths))
        self.most_new = max(self.most_new, *(slot[NEW] for slot in slots))
        return Shape(played, lacking, after, slots, wanted, lengths)

    def _check(self, slot: int, op: FixedOp) -> None:
        """Let a member be the one of its slots; raises UnfitRoundError."""
        if slot >= MOST_SLOTS or op.drafts == bool(slot % 2):
            raise UnfitRoundError
        name = "drafter" if op.drafts else "judge"
        if getattr(self, name) < 0:
            setattr(self, name, op.level)
        if getattr(self, name) != op.level or (op.drafts and self._keeps[op.level] and not op.drafted):
            raise UnfitRoundError

    def _drafts(self, op: FixedOp, held: list[int | None]) -> list[int]:
        """Features of a draft, which caches learn of."""
        if not self._keeps[op.level]:
            return [1, 0, 0, op.drafted]
        before = held[op.level]
        before = op.pending - 1 if before is None else before
        held[op.level] = op.pending + op.drafted - 1
        return [1, op.pending - before, before, op.drafted]

    def _judges(self, op: FixedOp, held: list[int | None]) -> list[int]:
        """Features of a verification, which caches learn of."""
        before = held[op.level]
        before = op.first - 1 if before is None else min(before, op.first - 1)
        limit = op.first + op.accepted
        held[:] = [None if tokens is None else min(tokens, limit) for tokens in held]
        held[op.level] = limit
        return [1, op.pending - before, before, 0]
