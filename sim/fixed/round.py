"""A round as it was played: the operations of one request up to a verification by the target, in their order."""

from collections.abc import Sequence
from typing import NamedTuple


class FixedOp(NamedTuple):
    """One operation of the request.

    Attributes:
        level: of the member that runs.
        drafts: whether it drafts; else it verifies.
        window: tokens that the step wants, 0 of a verification.
        asked: of these, how many there is room for.
        drafted: tokens that came of it.
        pending: tokens before it.
        first: index of the first pending token that a verification judges; of a draft `pending`.
        accepted, own: tokens of a verification, as in `contract.Outcome`.
        modelled: decisions that were modelled rather than replayed.
    """

    level: int
    drafts: bool
    window: int
    asked: int
    drafted: int
    pending: int
    first: int
    accepted: int
    own: int
    modelled: int

    @property
    def judged(self) -> int:
        """Pending tokens that a verification looks at."""
        return self.pending - self.first


class Round(NamedTuple):
    """Everything from one commit by the target to the next. A value: equal rounds are one object in `FixedRounds`.

    Attributes:
        ops: at least one; the last is a verification by the target, and the only one.
        committed: tokens that come out, >= 1.
        ends: whether the segment ends with it.
        needs: room with which, and with any more, it would have come out the same; more than it had where the room cut
            it.
    """

    ops: tuple[FixedOp, ...]
    committed: int
    ends: bool
    needs: int

    @classmethod
    def of(cls, ops: Sequence[FixedOp], committed: int, ends: bool) -> "Round":
        """The round of these operations."""
        # With no more room than for what it commits, the segment would end.
        needs = max(committed + 1, *(op.pending + max(op.window, 1) for op in ops))
        return cls(tuple(ops), committed, ends, needs)
