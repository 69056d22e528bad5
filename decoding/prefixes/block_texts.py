"""Which tokens each block of a prefix cache stands for, and what it follows: exact, since token ids are the keys.

A block has a number below the size of the cache. It is the block's key in the radix tree as well, and where a world
keeps keys and values, the place of these.
"""

from collections.abc import Sequence
from typing import NamedTuple

Tokens = tuple[int, ...]
START = -1  # stands in front of the first block of a text


class Branch(NamedTuple):
    """The block in which a text parts from what is cached.

    Attributes:
        block: its number.
        num_equal: of its tokens that the text has, from the first on, >= 1.
    """

    block: int
    num_equal: int


class BlockTexts:
    """Blocks by the text that they are the end of. Mutated by `add` and `remove`.

    Args:
        num_blocks: there are, >= 1.
        block_tokens: tokens of each, >= 1.
    """

    __slots__ = ("_after", "_free", "_num_blocks", "_num_taken", "_tokens", "block_tokens")

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._num_blocks = num_blocks
        self._num_taken = 0  # so many numbers were ever in use: memory goes by what is held, not by the size
        self._free = list[int]()
        self._after: dict[int, dict[Tokens, int]] = {START: {}}
        self._tokens: dict[int, tuple[int, Tokens]] = {}  # by block: what it follows, and its tokens

    @property
    def num_free(self) -> int:
        """Blocks that stand for nothing."""
        return len(self._free) + self._num_blocks - self._num_taken

    def follow(self, before: int, tokens: Tokens) -> int | None:
        """The block of `block_tokens` tokens after another one (`START`: of a text's beginning); None if not cached."""
        return self._after[before].get(tokens)

    def find(self, text: Tokens) -> list[int]:
        """Leading whole blocks of a text that are cached."""
        size, after, found = self.block_tokens, self._after, list[int]()
        before = START
        for start in range(0, len(text) - size + 1, size):
            block = after[before].get(text[start : start + size])
            if block is None:
                break
            found.append(block)
            before = block
        return found

    def branch(self, before: int, rest: Sequence[int]) -> Branch | None:
        """The block after another one that has most in common with what a text goes on with; the oldest of equals."""
        best = None
        if rest:
            for tokens, block in self._after[before].items():
                if tokens[0] == rest[0]:
                    same = next(
                        (at for at, pair in enumerate(zip(tokens, rest, strict=False)) if pair[0] != pair[1]), 0
                    )
                    num_equal = same or min(len(tokens), len(rest))
                    if best is None or num_equal > best.num_equal:
                        best = Branch(block, num_equal)
        return best

    def add(self, before: int, tokens: Tokens) -> int:
        """A free block now stands for these tokens after another block; there must be one."""
        if self._free:
            block = self._free.pop()
        else:
            block = self._num_taken
            self._num_taken += 1
        self._after[before][tokens] = block
        self._after[block] = {}
        self._tokens[block] = before, tokens
        return block

    def remove(self, block: int) -> None:
        """A block that nothing follows is free."""
        before, tokens = self._tokens.pop(block)
        del self._after[before][tokens], self._after[block]
        self._free.append(block)
