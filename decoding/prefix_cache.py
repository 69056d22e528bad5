"""The prefix cache of one member: its hits, what enters it, what is evicted. One logic for both worlds.

- A text is **looked up** at the member's first forward for its request. A hit is the leading whole blocks that are
  cached, then the tokens that the text shares with the block in which they differ: these are copied (**copy on
  write**). The text's last token is never in a hit, since what follows it is computed from it.
- Full blocks of the committed text **enter** after each forward that computed them. Those that another request has
  entered meanwhile are shared. New blocks take free ones, else evict; where neither suffices, the others remain the
  request's own, and are tried again.
- A running request **refers** to its blocks; these are not evicted.

Token ids are the keys (`BlockTexts`); a radix tree holds which requests refer to which block, and the order of eviction
(`PrefixTree`). Letter: N tokens of a text.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ..base.errors import ArgumentError, check_least

Tokens = tuple[int, ...]
START = -1  # in place of a block before a text's first one


class PartingBlock(NamedTuple):
    """The block in which a text differs from what is cached."""

    block: int  # its number
    num_equal: int  # of its tokens that the text has, from the first on, >= 1


class BlockTexts:
    """Blocks by the text that they end: which tokens each holds, and what it follows.

    A block has a number below `num_blocks` (>= 1), which is also its key in the radix tree, and in a world that keeps
    keys and values, their place. Each is of `block_tokens` >= 1 tokens. Mutated by `add` and `remove`.
    """

    __slots__ = ("_after", "_free", "_num_blocks", "_num_taken", "_tokens", "block_tokens")

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._num_blocks = num_blocks
        self._num_taken = 0  # numbers ever used: memory grows with the blocks held, not with the size
        self._free = list[int]()
        self._after: dict[int, dict[Tokens, int]] = {START: {}}
        self._tokens: dict[int, tuple[int, Tokens]] = {}  # by block: what it follows, and its tokens

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
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

    def branch(self, before: int, rest: Sequence[int]) -> PartingBlock | None:
        """The block after another one that shares most leading tokens with the rest of a text; the oldest of equals."""
        best = None
        if rest:
            for tokens, block in self._after[before].items():
                if tokens[0] == rest[0]:
                    same = next(
                        (at for at, pair in enumerate(zip(tokens, rest, strict=False)) if pair[0] != pair[1]), 0
                    )
                    num_equal = same or min(len(tokens), len(rest))
                    if best is None or num_equal > best.num_equal:
                        best = PartingBlock(block, num_equal)
        return best

    def add(self, before: int, tokens: Tokens) -> int:
        """Let a free block, of which there must be one, hold these tokens after another block."""
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
        """Free a block that nothing follows."""
        before, tokens = self._tokens.pop(block)
        del self._after[before][tokens], self._after[block]
        self._free.append(block)


class PrefixCounts(NamedTuple):
    """Sums over the requests of an operation."""

    asked_tokens: int  # of the texts that were looked up
    hit_tokens: int  # of these, found: in whole blocks, and copied out of the block in which texts differ
    entered_blocks: int  # that were new in the cache
    evicted_blocks: int  # to make room for them


NO_COUNTS = PrefixCounts(0, 0, 0, 0)


# Keys of blocks that follow one another; never changed in place, so that copies share it.
Run: TypeAlias = "array[int]"


class PrefixNode:
    """A run of blocks of the tree, and what follows it."""

    __slots__ = ("children", "keys", "num_references", "parent")

    def __init__(self, parent: "PrefixNode | None", keys: Run, num_references: int) -> None:
        self.parent = parent  # None: the root, which has no blocks
        self.keys = keys
        self.num_references = num_references
        self.children: dict[int, PrefixNode] = {}  # by their first key


class PrefixMatch(NamedTuple):
    """How much of a text is cached, in leading blocks."""

    num_blocks: int
    num_referenced: int  # the first of them, which a request refers to


class PrefixTree:
    """Cached blocks by the texts that they end. Keys need be equal only for equal blocks after equal texts.

    A node is a run of blocks that are read, released and evicted together; it is split where a text ends within it or
    leaves it. Work is per node, not per block, except for copying and comparing keys.

    **References.** An owner refers to a path from the root to its tip, so a block has at least the references of each
    block after it. A block without references is *evictable*.

    **Order of eviction.** Evictable blocks wait in one queue, the first to be evicted in front. A block joins its end
    when its last reference is released; of one owner's blocks the last of the text joins first. So the front is always
    a leaf: the block released longest ago; of those released at once, the last of the text. `match` moves nothing,
    `take` removes blocks from the queue.

    `num_evictable` counts the blocks without references, `num_blocks` all blocks. `on_evicted` is called before blocks
    are evicted, with the keys of the text up to and with them, and how many of the last ones they are.
    """

    __slots__ = ("_evictable", "_on_evicted", "num_blocks", "num_evictable", "root")

    def __init__(self, on_evicted: Callable[[Run, int], None] | None = None) -> None:
        self._on_evicted = on_evicted
        self.root = PrefixNode(None, array("q"), 0)
        self._evictable: OrderedDict[PrefixNode, None] = OrderedDict()
        self.num_evictable = 0
        self.num_blocks = 0

    def copy(self) -> "PrefixTree":
        """A snapshot of what is cached. It has no references and no queue, so nothing of it can be evicted."""
        copied = PrefixTree()
        copied.num_blocks = self.num_blocks
        pairs = [(self.root, copied.root)]
        while pairs:
            ours, theirs = pairs.pop()
            for first, child in ours.children.items():
                twin = theirs.children[first] = PrefixNode(theirs, child.keys, 0)
                pairs.append((child, twin))
        return copied

    def match(self, keys: Run) -> PrefixMatch:
        """The leading blocks that are cached; changes nothing."""
        node, end, num_referenced, most = self.root, 0, 0, len(keys)
        while end < most and (child := node.children.get(keys[end])) is not None:
            node = child
            equal = _num_equal(node.keys, keys, end)
            end += equal
            if node.num_references:
                num_referenced = end
            if equal < len(node.keys):
                break
        return PrefixMatch(end, num_referenced)

    def take(self, keys: Run) -> PrefixNode:
        """The tip of a new reference to leading blocks, all of which must be cached."""
        node, end = self.root, 0
        while end < len(keys):
            node = self._head(node.children[keys[end]], len(keys) - end)
            self._refer(node)
            end += len(node.keys)
        return node

    def extend(self, tip: PrefixNode, keys: Run) -> tuple[PrefixNode, int]:
        """Move a reference from its tip over the next blocks, one or more, which enter the tree.

        Returns the new tip, and how many of the blocks were cached before, which the owner now shares.
        """
        end = 0
        while tip.children and end < len(keys) and (child := tip.children.get(keys[end])) is not None:
            tip = self._head(child, _num_equal(child.keys, keys, end))
            self._refer(tip)
            end += len(tip.keys)
        if end == len(keys):
            return tip, end
        new = keys[end:] if end else keys
        self.num_blocks += len(new)
        if tip.num_references == 1 and not tip.children:  # no other owner: the run may grow in place
            tip.keys = tip.keys + new
            return tip, end
        tip.children[new[0]] = node = PrefixNode(tip, new, 1)
        return node, end

    def release(self, tip: PrefixNode) -> None:
        """Give up a reference, the last block first."""
        node = tip
        while (parent := node.parent) is not None:
            node.num_references -= 1
            if not node.num_references:
                self._evictable[node] = None
                self.num_evictable += len(node.keys)
            node = parent

    def evict(self, num_blocks: int) -> None:
        """Drop the first blocks of the queue, at most `num_evictable`."""
        self.num_evictable -= num_blocks
        self.num_blocks -= num_blocks
        while num_blocks:
            node = next(iter(self._evictable))
            if self._on_evicted is not None:
                self._on_evicted(_text(node), min(num_blocks, len(node.keys)))
            if len(node.keys) > num_blocks:
                node.keys = node.keys[:-num_blocks]
                return
            num_blocks -= len(node.keys)
            del self._evictable[node]
            assert node.parent is not None
            del node.parent.children[node.keys[0]]

    def _refer(self, node: PrefixNode) -> None:
        """Add a reference; a node without one before leaves the queue."""
        if not node.num_references:
            del self._evictable[node]
            self.num_evictable -= len(node.keys)
        node.num_references += 1

    def _head(self, node: PrefixNode, num_blocks: int) -> PrefixNode:
        """The first blocks of a node, as a node; the rest of a longer one stays the node it was.

        So tips and places in the queue, which belong to the end of a run, stay right. The caller must refer to a head
        next.
        """
        if num_blocks >= len(node.keys):
            return node
        parent = node.parent
        assert parent is not None
        head = PrefixNode(parent, node.keys[:num_blocks], node.num_references)
        node.keys = node.keys[num_blocks:]
        node.parent = parent.children[head.keys[0]] = head
        head.children[node.keys[0]] = node
        if not head.num_references:
            self._evictable[head] = None
        return head


def _text(node: PrefixNode) -> Run:
    text = node.keys
    while (parent := node.parent) is not None and parent.parent is not None:  # the root has none
        text = parent.keys + text
        node = parent
    return text


def _num_equal(run: Run, keys: Run, start: int) -> int:
    """How many blocks of a run a text has from block `start` on."""
    same = keys[start : start + len(run)]
    if run == same:
        return len(run)
    equal, most = 0, len(same)
    if run[:most] == same:
        return most
    while most - equal > 1:  # `equal` are, `most` are not; comparing slices is faster than single keys
        middle = (equal + most) // 2
        if run[equal:middle] == same[equal:middle]:
            equal = middle
        else:
            most = middle
    return equal


BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheSize:
    """Of each member's prefix cache; raises ArgumentError if either is below 1."""

    num_blocks: int  # >= 1
    block_tokens: int = BLOCK_TOKENS  # tokens of a block, >= 1

    def __post_init__(self) -> None:
        check_least("`prefix_cache`", self.num_blocks, 1)
        check_least("`block_tokens`", self.block_tokens, 1)

    @property
    def num_tokens(self) -> int:
        """Tokens that all blocks hold."""
        return self.num_blocks * self.block_tokens


def prefix_cache_size(prefix_cache: int | None, block_tokens: int | None) -> PrefixCacheSize | None:
    """The size of a cache from its options: None blocks are no cache, None `block_tokens` are 16.

    Raises ArgumentError for a number below 1, or a size of blocks without a number of them.
    """
    if prefix_cache is not None:
        size = BLOCK_TOKENS if block_tokens is None else block_tokens
        return PrefixCacheSize(num_blocks=prefix_cache, block_tokens=size)
    if block_tokens is not None:
        raise ArgumentError(f"`block_tokens` goes with `prefix_cache` BLOCKS, got `block_tokens` {block_tokens} alone")
    return None


class Hit(NamedTuple):
    """What is cached of a text."""

    blocks: tuple[int, ...]  # its leading whole blocks
    branch: PartingBlock | None  # the block that tokens after these are copied from; None if there are none
    num_tokens: int  # of both


class Entered(NamedTuple):
    """Blocks of a request that the cache now holds, following those that it referred to before."""

    blocks: list[int]  # in order
    num_shared: int  # how many of the first were cached already, by another request


class _Held:
    __slots__ = ("last", "num_blocks", "tip")

    def __init__(self, tip: PrefixNode, blocks: tuple[int, ...]) -> None:
        self.tip = tip
        self.num_blocks = len(blocks)
        self.last = blocks[-1] if blocks else START


class MemberPrefixes:
    """A member's prefix cache, without what its blocks hold. Mutated by `look_up`, `enter` and `release`.

    `num_evicted` counts the blocks ever evicted.
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

        The request was looked up; `tokens_of` has the tokens of a block of its text, by index.
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
        if blocks:  # now referred to, so not evicted
            held.tip, _ = self._tree.extend(held.tip, array("q", blocks))
        room = texts.num_free + self._tree.num_evictable
        new = self._add(before, [tokens_of(index) for index in missing[num_shared:][:room]])
        if new:
            held.tip, _ = self._tree.extend(held.tip, array("q", new))
            blocks += new
        if blocks:
            held.last = blocks[-1]
            held.num_blocks += len(blocks)
        return Entered(blocks, num_shared)

    def release(self, request_id: str) -> None:
        """Give up the references of a request, if it has any."""
        held = self._held.pop(request_id, None)
        if held is not None:
            self._tree.release(held.tip)

    def _add(self, before: int, texts: list[Tokens]) -> list[int]:
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
