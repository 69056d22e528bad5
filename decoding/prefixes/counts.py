"""What a prefix cache did in an operation."""

from typing import NamedTuple


class PrefixCounts(NamedTuple):
    """Sums over the requests of an operation.

    Attributes:
        asked_tokens: of the texts that were looked up.
        hit_tokens: of these, found: in whole blocks, and copied out of the block in which texts part.
        entered_blocks: that were new in the cache.
        evicted_blocks: that made room for them.
    """

    asked_tokens: int
    hit_tokens: int
    entered_blocks: int
    evicted_blocks: int


NO_COUNTS = PrefixCounts(0, 0, 0, 0)
