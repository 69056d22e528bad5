"""Host memory that takes the blocks which caches of device memory evict: a copy each, the oldest go first.

Blocks are told apart by member and by all keys from the start of the text, as in `PrefixTree`; here one by one.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class _Place:
    """A block by its path, of which there may be a copy; of no use without one once nothing is held behind it."""

    __slots__ = ("children", "key", "member", "parent")

    def __init__(self, parent: "_Place | None", key: Hashable, member: int) -> None:
        self.parent = parent
        self.key = key
        self.member = member
        self.children: dict[Hashable, _Place] = {}


class HostTier:
    """Copies of blocks of several members.

    A block becomes the newest when it is put here, put here again, or loaded; of those of one call the last of the text
    first, so that it goes before those that it follows. Loading leaves the copy where it is.

    Args:
        num_bytes: of host memory, >= 1.
        block_bytes: `[M]` of a block of each member, >= 1.

    Attributes:
        used_bytes: of all copies.
        most_bytes: that were used at once.
        stored, loaded, dropped: `[M]` blocks that came, that were read again, and that went, so far; one that is there
            when it is put here has not come.
    """

    def __init__(self, num_bytes: int, block_bytes: Sequence[int]) -> None:
        self._num_bytes = num_bytes
        self._block_bytes = tuple(block_bytes)
        self._roots = [_Place(None, None, member) for member in range(len(block_bytes))]
        self._held: OrderedDict[_Place, None] = OrderedDict()
        self.used_bytes = self.most_bytes = 0
        self.stored = [0] * len(block_bytes)
        self.loaded = [0] * len(block_bytes)
        self.dropped = [0] * len(block_bytes)

    def num_found(self, member: int, keys: Sequence[Hashable], start: int) -> int:
        """How many blocks of a text are here, one after the other from block `start` on; changes nothing."""
        place: _Place | None = self._roots[member]
        for end, key in enumerate(keys):
            assert place is not None
            place = place.children.get(key)
            if place is None or (end >= start and place not in self._held):
                return max(end - start, 0)
        return max(len(keys) - start, 0)

    def load(self, member: int, keys: Sequence[Hashable], start: int) -> None:
        """Read the blocks of a text from block `start` on, all of which are here."""
        for place in self._places(member, keys)[start:][::-1]:
            self._held.move_to_end(place)
            self.loaded[member] += 1

    def put(self, member: int, keys: Sequence[Hashable], start: int) -> None:
        """Take the blocks of a text from block `start` on; those that are larger than the whole tier are lost."""
        size = self._block_bytes[member]
        if size > self._num_bytes:
            return
        for place in self._places(member, keys)[start:][::-1]:
            if place in self._held:
                self._held.move_to_end(place)
                continue
            self._held[place] = None
            self.stored[member] += 1
            self.used_bytes += size
            while self.used_bytes > self._num_bytes:
                self._drop()
            self.most_bytes = max(self.most_bytes, self.used_bytes)

    def _places(self, member: int, keys: Sequence[Hashable]) -> list[_Place]:
        """Of all blocks of a text, made where there are none."""
        place = self._roots[member]
        found = []
        for key in keys:
            after = place.children.get(key)
            if after is None:
                after = place.children[key] = _Place(place, key, member)
            found.append(after)
            place = after
        return found

    def _drop(self) -> None:
        """Lose the oldest copy."""
        place, _ = self._held.popitem(last=False)
        self.used_bytes -= self._block_bytes[place.member]
        self.dropped[place.member] += 1
        while place.parent is not None and not place.children and place not in self._held:
            del place.parent.children[place.key]
            place = place.parent
