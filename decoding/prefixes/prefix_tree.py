"""The radix tree of cached blocks: who refers to them, and in which order they go.

A node is a run of blocks that are read, released and evicted together; it is split where a text ends within it or
leaves it. Work is per node, not per block, so a prompt of a thousand blocks costs what one of ten does, save for
copying and comparing its keys.

**References.** An owner refers to a path from the root to its tip, so a block has at least the references of each
block after it. A block that nobody refers to is *evictable*.

**Order of eviction.** Evictable blocks stand in one queue, the first to go in front. A block joins its end when its
last reference is released; of one owner's blocks the last of the text joins first. So a block always stands before
those that it follows in the text, the front is always a leaf, and a block goes when it was released longest ago; of
those released at once, when it is last in the text. Being looked at moves nothing, being taken leaves the queue.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

# Keys of blocks that follow one another; never changed in place, so that copies share it.
Run: TypeAlias = "array[int]"


class Node:
    """A run of blocks of the tree, and what follows it."""

    __slots__ = ("children", "keys", "num_references", "parent")

    def __init__(self, parent: "Node | None", keys: Run, num_references: int) -> None:
        self.parent = parent  # None: the root, which has no blocks
        self.keys = keys
        self.num_references = num_references
        self.children: dict[int, Node] = {}  # by their first key


class Match(NamedTuple):
    """How much of a text is cached, in leading blocks."""

    num_blocks: int
    num_referenced: int  # the first of them, which somebody refers to


class PrefixTree:
    """Cached blocks by the texts that they hold the end of. Keys need be equal for equal blocks after equal texts only.

    `num_evictable` are the blocks that nobody refers to, `num_blocks` those with references as well. `on_evicted` is
    told of blocks before they go: the keys of the text up to and with them, and how many of the last they are.
    """

    __slots__ = ("_evictable", "_on_evicted", "num_blocks", "num_evictable", "root")

    def __init__(self, on_evicted: Callable[[Run, int], None] | None = None) -> None:
        self._on_evicted = on_evicted
        self.root = Node(None, array("q"), 0)
        self._evictable: OrderedDict[Node, None] = OrderedDict()
        self.num_evictable = 0
        self.num_blocks = 0

    def copy(self) -> "PrefixTree":
        """What is cached now, whatever becomes of it; who refers to it is left out, so nothing of it can be evicted."""
        copied = PrefixTree()
        copied.num_blocks = self.num_blocks
        pairs = [(self.root, copied.root)]
        while pairs:
            ours, theirs = pairs.pop()
            for first, child in ours.children.items():
                twin = theirs.children[first] = Node(theirs, child.keys, 0)
                pairs.append((child, twin))
        return copied

    def match(self, keys: Run) -> Match:
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
        return Match(end, num_referenced)

    def take(self, keys: Run) -> Node:
        """The tip of a new reference to leading blocks, all of which must be cached."""
        node, end = self.root, 0
        while end < len(keys):
            node = self._head(node.children[keys[end]], len(keys) - end)
            self._refer(node)
            end += len(node.keys)
        return node

    def extend(self, tip: Node, keys: Run) -> tuple[Node, int]:
        """Move an owner's reference from its tip over the blocks that follow it, which enter the tree.

        Args:
            tip: where the owner's reference ends, as `take` or `extend` returned it.
            keys: of the next blocks, at least one.

        Returns:
            The new tip, and how many of the blocks were cached before, which the owner now shares.
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
        if tip.num_references == 1 and not tip.children:  # the owner's alone, so that the run may just grow
            tip.keys = tip.keys + new
            return tip, end
        tip.children[new[0]] = node = Node(tip, new, 1)
        return node, end

    def release(self, tip: Node) -> None:
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

    def _refer(self, node: Node) -> None:
        """One reference more; what nobody referred to leaves the queue."""
        if not node.num_references:
            del self._evictable[node]
            self.num_evictable -= len(node.keys)
        node.num_references += 1

    def _head(self, node: Node, num_blocks: int) -> Node:
        """The first blocks of a node, as a node; the rest of a longer one stays the node it was.

        So tips and places in the queue stay right, since they belong to the end of a run. The head of a run that
        nobody refers to is in the queue for a moment only: whoever asks for a head refers to it next.
        """
        if num_blocks >= len(node.keys):
            return node
        parent = node.parent
        assert parent is not None
        head = Node(parent, node.keys[:num_blocks], node.num_references)
        node.keys = node.keys[num_blocks:]
        node.parent = parent.children[head.keys[0]] = head
        head.children[node.keys[0]] = node
        if not head.num_references:
            self._evictable[head] = None
        return head


def _text(node: Node) -> Run:
    """The keys from the root to the end of a node."""
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
    while most - equal > 1:  # these are equal, and those are not; slices are compared at once, keys one by one
        middle = (equal + most) // 2
        if run[equal:middle] == same[equal:middle]:
            equal = middle
        else:
            most = middle
    return equal
