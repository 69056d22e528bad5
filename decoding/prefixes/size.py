"""How large the prefix cache of a member is."""

from dataclasses import dataclass

from ...arguments import ArgumentError, check_least

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheSize:
    """Of each member's prefix cache.

    Attributes:
        num_blocks: >= 1.
        block_tokens: tokens of a block, >= 1.

    Raises:
        ArgumentError: either is below 1.
    """

    num_blocks: int
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        check_least("`prefix_cache`", self.num_blocks, 1)
        check_least("`block_tokens`", self.block_tokens, 1)

    @property
    def num_tokens(self) -> int:
        """That all blocks hold."""
        return self.num_blocks * self.block_tokens


def prefix_cache_size(prefix_cache: int | None, block_tokens: int | None) -> PrefixCacheSize | None:
    """The size that is asked for; None: no prefix cache.

    Args:
        prefix_cache: blocks of each member, >= 1; None for no cache.
        block_tokens: of a block, >= 1; None is 16.

    Raises:
        ArgumentError: a number below 1, or a size of blocks without a number of them.
    """
    if prefix_cache is not None:
        size = BLOCK_TOKENS if block_tokens is None else block_tokens
        return PrefixCacheSize(num_blocks=prefix_cache, block_tokens=size)
    if block_tokens is not None:
        raise ArgumentError(f"`block_tokens` goes with `prefix_cache` BLOCKS, got `block_tokens` {block_tokens} alone")
    return None
