"""Which shapes are captured: a forward is padded to the next one.

Letters: B requests, R rows, Q tokens of a row, S slots.
"""

from typing import NamedTuple

from ..kv.member_kv import SLOT_STEP, MemberKV
from ..kv.placement import Placement

# Longer feeds read prompts: there the arithmetic takes the time, and padding would add to it.
MOST_ROW_TOKENS = 16
MOST_TOKENS = 1024


class Bucket(NamedTuple):
    """A shape of forwards.

    Attributes:
        rows: R, the first so many rows of the cache.
        tokens: Q of each.
        slots: S that each token may look at.
    """

    rows: int
    tokens: int
    slots: int


def bucket_of(placement: Placement, cache: MemberKV, *, further: int = 0) -> Bucket | None:
    """The smallest bucket that holds a forward; None for one that is not captured.

    Rows, tokens and slots are powers of two, but no more than the cache has; its last step of slots is nobody's.

    Args:
        placement: of the forward.
        cache: where it was placed.
        further: tokens that each row may come to hold beyond those, in the same bucket.
    """
    if placement.tree:
        return None
    rows = placement.rows
    # Rows that do not stand side by side are known to the device only; asking it would be a wait.
    needed = rows.stop if isinstance(rows, slice) else cache.num_rows
    bucket = Bucket(
        rows=min(power_of_two(needed), cache.num_rows),
        tokens=power_of_two(placement.longest),
        slots=min(max(SLOT_STEP, power_of_two(placement.num_slots + further)), cache.capacity - SLOT_STEP),
    )
    fits = bucket.tokens <= MOST_ROW_TOKENS and bucket.rows * bucket.tokens <= MOST_TOKENS
    return bucket if fits else None


def power_of_two(count: int) -> int:
    """The smallest that is at least `count` >= 1."""
    return 1 << (count - 1).bit_length()
