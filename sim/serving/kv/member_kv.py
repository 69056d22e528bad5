"""KV memory of one member on one replica: blocks that requests hold, and blocks kept for texts to come.

Every block is free, used (by one owner or more) or evictable (cached, used by nobody). A block is counted, not named:
where it lies makes no difference to seconds.
"""

from collections.abc import Container, Iterable
from typing import Protocol

from ....decoding.prefixes.prefix_tree import Node, PrefixTree, Run
from ..limits import KvLimits
from .prefix_hits import PrefixHits


class Keys(Protocol):
    """One key per block of a text, such as `BlockKeys` or a `Run`. Equal keys after equal keys: equal blocks."""

    def __getitem__(self, blocks: slice, /) -> Run:
        """Keys of a range of blocks; fewer where the text has an end."""


class _Held:
    """What one owner holds: `num_cached` blocks in the tree, up to its tip, and others behind them."""

    __slots__ = ("num_blocks", "num_cached", "tip")

    def __init__(self, tip: Node, num_cached: int) -> None:
        self.tip = tip
        self.num_cached = num_cached
        self.num_blocks = num_cached


class MemberKv:
    """Blocks of one member. An owner is an integer of the caller, from `open` to `close`.

    - `open` takes the cached prefix: those blocks leave the queue of eviction.
    - `reserve` takes free blocks first; what lacks is evicted, just so many blocks, in the order of `PrefixTree`.
    - `commit` puts full blocks into the cache at once. If an equal block is there (two requests computed it at the same
      time, or `drop_units` had it computed again), the owner shares it and its own is free.
    - `close` frees blocks that are not full, or not committed; of the others those that nobody else refers to join the
      queue of eviction, the last of the text first. Owners that end in one step are released in the order of the calls.
    """

    __slots__ = (
        "_asked_blocks", "_asked_tokens", "_block_tokens", "_found_blocks", "_held", "_tree", "free_blocks", "limits",
    )  # fmt: skip

    def __init__(self, limits: KvLimits) -> None:
        self.limits = limits
        self.free_blocks = limits.num_blocks
        self._block_tokens = limits.block_tokens
        self._tree = PrefixTree()
        self._held: dict[int, _Held] = {}
        self._asked_blocks = self._asked_tokens = self._found_blocks = 0

    @property
    def evictable_blocks(self) -> int:
        """Cached blocks that nobody uses."""
        return self._tree.num_evictable

    @property
    def available_blocks(self) -> int:
        """That owners may still get: free and evictable ones."""
        return self.free_blocks + self._tree.num_evictable

    @property
    def used_blocks(self) -> int:
        """Blocks that owners hold; one that several share counts once."""
        return self.limits.num_blocks - self.free_blocks - self._tree.num_evictable

    @property
    def first_keys(self) -> Container[int]:
        """Keys of the first blocks of all texts that are cached, whatever becomes of them."""
        return self._tree.root.children.keys()

    @property
    def common_tokens(self) -> int:
        """Of the longest text that every owner begins with and holds in cached blocks; 0 of fewer than two owners."""
        if len(self._held) < 2:
            return 0
        node = next(iter(self._held.values())).tip
        num_blocks = 0
        while node.parent is not None:
            if node.num_references == len(self._held):
                num_blocks += len(node.keys)
            node = node.parent
        return num_blocks * self._block_tokens

    def repeated_tokens(self, owners: Iterable[int], *, least_tokens: int, least_owners: int) -> int:
        """Tokens in cached blocks that owners hold in common, less those of each such block once.

        Args:
            owners: who hold something.
            least_tokens: of a text up to the end of a run of blocks, for these to count.
            least_owners: of those given that hold a run, for it to count, >= 2.
        """
        found: dict[Node, tuple[int, int]] = {}  # end of its text in blocks, owners
        for owner in owners:
            held = self._held[owner]
            node, end = held.tip, held.num_cached
            while node.parent is not None:
                found[node] = end, found[node][1] + 1 if node in found else 1
                end -= len(node.keys)
                node = node.parent
        least_blocks = least_tokens / self._block_tokens
        blocks = [
            (count - 1) * len(node.keys)
            for node, (end, count) in found.items()
            if count >= least_owners and end >= least_blocks
        ]
        return sum(blocks) * self._block_tokens

    @property
    def free_share(self) -> float:
        """Share of the blocks that owners may still get, in [0, 1]: free and evictable ones."""
        return self.available_blocks / self.limits.num_blocks

    @property
    def hits(self) -> PrefixHits:
        """What `open` was asked for and found, so far."""
        found = self._found_blocks
        return PrefixHits(self._asked_blocks, found, self._asked_tokens, found * self._block_tokens)

    def lookup(self, keys: Run) -> int:
        """How many leading blocks are cached; changes nothing."""
        return self._tree.match(keys).num_blocks

    def hit_tokens(self, keys: Keys, text_tokens: int) -> int:
        """Tokens of a text that the prefix cache holds; changes nothing."""
        return self._hit(keys, text_tokens)[0] * self._block_tokens

    def usable_tokens(self, keys: Keys, text_tokens: int) -> int:
        """What `open` would return; changes nothing."""
        return self.hit_tokens(keys, text_tokens)

    def frozen(self) -> "MemberKv":
        """A copy of the prefix cache as it is now, for `lookup` and `hit_tokens` only."""
        copied = MemberKv(self.limits)
        copied._tree = self._tree.copy()
        return copied

    def fits(self, keys: Keys, text_tokens: int, num_tokens: int) -> bool:
        """Whether `open`, and after it `reserve` of `num_tokens`, would both do; changes nothing.

        So an engine that cannot admit a request yet leaves the order of eviction and the hits as they were, and asks
        every member before the first one opens.
        """
        blocks = -(-num_tokens // self._block_tokens)
        available = self.available_blocks
        if blocks <= available:
            return True
        # A hit spares blocks only as far as they are used already: others come out of what is available.
        return blocks - self._hit(keys, text_tokens)[1] <= available

    def open(
        self, owner: int, keys: Keys, text_tokens: int, *, resumes: bool = False, hit_tokens: int | None = None
    ) -> int:
        """Give a new owner the blocks of its text that are cached.

        Args:
            owner: who holds nothing yet.
            keys: of the text's blocks.
            text_tokens: of the whole text, >= 1: the prompt, and what was emitted before a preemption. Its last token
                is never in a hit, since what follows it is computed from it.
            resumes: after a preemption; `hits` leaves it out, since a request that finds its own blocks again would
                flatter the cache.
            hit_tokens: what `hit_tokens` has just said of the text; None: it is looked up.

        Returns:
            Tokens that the owner holds now, a multiple of `block_tokens`.

        Raises:
            ValueError: the owner holds something.
        """
        if owner in self._held:
            raise ValueError(f"owner {owner} is open already")
        num_blocks = 0
        tip = self._tree.root
        if self.limits.prefix_cache:
            if hit_tokens is None:
                hit_tokens = self.hit_tokens(keys, text_tokens)
            num_blocks = hit_tokens // self._block_tokens
            if num_blocks:
                tip = self._tree.take(keys[:num_blocks])
            if not resumes:
                self._asked_blocks += text_tokens // self._block_tokens
                self._asked_tokens += text_tokens
                self._found_blocks += num_blocks
        self._held[owner] = _Held(tip, num_blocks)
        return num_blocks * self._block_tokens

    def reserve(self, owner: int, num_tokens: int) -> bool:
        """Make an owner hold blocks for so many tokens in all; it keeps what it has beyond them.

        Returns:
            False, and nothing has changed, if free and evictable blocks do not suffice.
        """
        held = self._held[owner]
        more = -(-num_tokens // self._block_tokens) - held.num_blocks
        if more <= 0:
            return True
        if not self.take(more):
            return False
        held.num_blocks += more
        return True

    def take(self, num_blocks: int) -> bool:
        """Take blocks for owners who are told apart later, by `hold`: `reserve` in two steps.

        Returns:
            False, and nothing has changed, if free and evictable blocks do not suffice.
        """
        short = num_blocks - self.free_blocks
        if short > 0:
            if short > self._tree.num_evictable:
                return False
            self._tree.evict(short)
            self.free_blocks += short
        self.free_blocks -= num_blocks
        return True

    def hold(self, owner: int, num_tokens: int) -> None:
        """Let an owner have blocks for so many tokens in all, no fewer than it has, of those that were taken."""
        self._held[owner].num_blocks = -(-num_tokens // self._block_tokens)

    def commit(self, owner: int, num_tokens: int, keys: Keys) -> None:
        """Put the full blocks of an owner's first `num_tokens`, all of them computed, into the prefix cache.

        Raises:
            ValueError: the owner holds fewer blocks, or `keys` end before them.
        """
        held = self._held[owner]
        full = num_tokens // self._block_tokens
        if num_tokens > held.num_blocks * self._block_tokens:
            held_tokens = held.num_blocks * self._block_tokens
            raise ValueError(f"num_tokens of owner {owner} must be <= {held_tokens}, which it holds, got {num_tokens}")
        more = full - held.num_cached
        if more <= 0 or not self.limits.prefix_cache:
            return
        new = keys[held.num_cached : full]
        if len(new) < more:
            raise ValueError(f"keys of owner {owner} must be >= {full}, got {held.num_cached + len(new)}")
        held.tip, shared = self._tree.extend(held.tip, new)
        held.num_cached = full
        self.free_blocks += shared

    def close(self, owner: int) -> None:
        """Release everything that an owner holds; it may open again."""
        held = self._held.pop(owner)
        self.free_blocks += held.num_blocks - held.num_cached
        self._tree.release(held.tip)

    def _hit(self, keys: Keys, text_tokens: int) -> tuple[int, int]:
        """Blocks of a hit, and how many of them somebody uses."""
        if not self.limits.prefix_cache:
            return 0, 0
        found = self._tree.match(keys[: (text_tokens - 1) // self._block_tokens])
        hit = max(0, found.num_blocks - self.limits.drop_units)
        return hit, min(found.num_referenced, hit)
