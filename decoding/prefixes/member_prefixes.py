"""The prefix cache of one member: what it finds of a text, what enters it, what goes. One logic for both worlds.

- A text is **looked up** when the member's first forward for its request comes. A hit is the leading whole blocks that
  are cached, and then the tokens that the text shares with the block in which it parts from what is cached: these are
  copied, as that block goes on otherwise (**copy on write**). The text's last token is never in a hit, since what
  follows it is computed from it.
- Blocks **enter** after each forward: the full blocks of the committed text, which the forward computed. What another
  request has put there meanwhile is shared. New blocks take free ones, else evict; where neither suffices, the others
  stay the request's own, and are tried again.
- A running request **refers** to its blocks; these are not evicted. The order of eviction is that of `PrefixTree`.

Letters: N tokens of a text.
"""

from array import array
from collections.abc import Callable
from typing import NamedTuple

from .block_texts import START, BlockTexts, Branch, Tokens
from .prefix_tree import Node, PrefixTree, Run
from .size import PrefixCacheSize


class Hit(NamedTuple):
    """What is cached of a text.

    Attributes:
        blocks: its leading whole blocks.
        branch: the block that tokens after these are copied from; None if there are none.
        num_tokens: of both.
    """

    blocks: tuple[int, ...]
    branch: Branch | None
    num_tokens: int


class Entered(NamedTuple):
    """Blocks of a request that the cache now holds, following those that it referred to before.

    Attributes:
        blocks: in order.
        num_shared: the first so many were there: another request put them there.
    """

    blocks: list[int]
    num_shared: int


class _Held:
    """What a request refers to."""

    __slots__ = ("last", "num_blocks", "tip")

    def __init__(self, tip: Node, blocks: tuple[int, ...]) -> None:
        self.tip = tip
        self.num_blocks = len(blocks)
        self.last = blocks[-1] if blocks else START


class MemberPrefixes:
    """A member's prefix cache, without what its blocks hold. Mutated by all methods but `find`.

    Args:
        size: of the cache.

    Attributes:
        num_evicted: blocks that ever made room.
    """

    __slots__ = ("_held", "_texts", "_tree", "block_tokens", "num_evicted")

    def __init__(self, size: PrefixCacheSize) -> None:
        self.block_tokens = size.block_tokens
        self.num_evicted = 0
        self._texts = BlockTexts(size.num_blocks, size.block_tokens)
        self._tree = PrefixTree(self._on_evicted)
        self._held: dict[str, _Held] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks that hold something."""
        return self._tree.num_blocks

    def holds(self, request_id: str) -> bool:
        """Whether a request was looked up, and has not been released since."""
        return request_id in self._held

    def find(self, text: Tokens) -> Hit:
        """What is cached of `[N]` tokens; changes nothing."""
        size = self.block_tokens
        usable = text[: len(text) - 1]
        blocks = self._texts.find(usable)
        found = size * len(blocks)
        branch = self._texts.branch(blocks[-1] if blocks else START, usable[found : found + size])
        return Hit(tuple(blocks), branch, found + (branch.num_equal if branch else 0))

    def look_up(self, request_id: str, text: Tokens) -> Hit:
        """Let a request refer to what is cached of its text; raises ValueError for one that does already."""
        if request_id in self._held:
            raise ValueError(f"request {request_id} was looked up already")
        hit = self.find(text)
        self._held[request_id] = _Held(self._tree.take(array("q", hit.blocks)), hit.blocks)
        return hit

    def missing(self, request_id: str, num_tokens: int) -> range:
        """Indices of the full blocks of a request's first `num_tokens` tokens that it does not refer to."""
        return range(self._held[request_id].num_blocks, num_tokens // self.block_tokens)

    def enter(self, request_id: str, tokens_of: Callable[[int], Tokens], num_tokens: int) -> Entered:
        """Take in the full blocks of a request's first `num_tokens` tokens, all of them computed, as far as they fit.

        Args:
            request_id: that was looked up.
            tokens_of: the tokens of a block of its text, by index.
            num_tokens: of the text.
        """
        held, texts = self._held[request_id], self._texts
        missing = self.missing(request_id, num_tokens)
        blocks: list[int] = []
        before: int = held.last
        for index in missing:
            block = texts.follow(before, tokens_of(index))
            if block is None:
                break
            blocks.append(block)
            before = block
        num_shared = len(blocks)
        if blocks:  # they are evicted no more
            held.tip, _ = self._tree.extend(held.tip, array("q", blocks))
        new = self._add(before, [tokens_of(index) for index in missing[num_shared:][: self._num_available]])
        if new:
            held.tip, _ = self._tree.extend(held.tip, array("q", new))
            blocks += new
        if blocks:
            held.last = blocks[-1]
            held.num_blocks += len(blocks)
        return Entered(blocks, num_shared)

    def release(self, request_id: str) -> None:
        """A request refers to nothing more; it may refer to nothing."""
        held = self._held.pop(request_id, None)
        if held is not None:
            self._tree.release(held.tip)

    @property
    def _num_available(self) -> int:
        return self._texts.num_free + self._tree.num_evictable

    def _add(self, before: int, texts: list[Tokens]) -> list[int]:
        """Blocks that follow one another; there is room for them."""
        short = len(texts) - self._texts.num_free
        if short > 0:
            self._tree.evict(short)
            self.num_evicted += short
        blocks = []
        for tokens in texts:
            before = self._texts.add(before, tokens)
            blocks.append(before)
        return blocks

    def _on_evicted(self, text: Run, num_blocks: int) -> None:
        for block in reversed(text[-num_blocks:]):
            self._texts.remove(block)
