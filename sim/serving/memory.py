"""KV memory by blocks: of one member on one replica, and host memory for blocks that its prefix cache evicts.

Every block is free, used (by one owner or more) or evictable (cached, without an owner). Blocks are counted, without
addresses, which do not affect seconds. Blocks have keys, the workload's ids where it has them and private ones after
them, and are identified by all keys from the start of the text, as in `PrefixTree`.
"""

from array import array
from collections import OrderedDict
from collections.abc import Container, Hashable, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np

from ...decoding.prefix_cache import PrefixNode, PrefixTree, Run
from ...runs.serving import HostTotals, Lookups
from ...traces.workloads.arrival import Arrival, Ids
from .limits import KvLimits, Offload

_MOST_BLOCKS = 2**32  # of a text, so that private keys of two requests differ


class BlockKeys:
    """One integer of 64 bits per block of a member, made on demand, any number of blocks.

    A block with ids for all of its text has `block_key` of them, >= 0, equal for all requests; blocks of one unit have
    the same key, and are distinguished by the blocks before them. Any other, such as those of generated tokens
    that no other request reads, has a private key of the request, < 0: no other request hits it, but the request itself
    does when it resumes. Two prompts that differ within a unit share none of that unit's blocks, however small, since
    ids identify units and not their equal parts.
    """

    __slots__ = (
        "_answer", "_block_tokens", "_blocks", "_keys", "_num_known", "_num_shared", "_private", "_unit_tokens",
    )  # fmt: skip

    def __init__(
        self,
        blocks: Ids,
        unit_tokens: int,
        block_tokens: int,
        prompt_tokens: int,
        serial: int,
        answer: Ids = (),
    ) -> None:
        """Store the data from which keys are made.

        `blocks` and `answer` are as of `Arrival`, in units of `unit_tokens` (0 if there are no ids); with an `answer`
        each full unit of the prompt must have an id. `block_tokens` are those of a block of the member, >= 1; `serial`
        is unique, >= 0. Readers of workloads and `ReplicaMemory` check all that.
        """
        if blocks or answer:
            full, rest = divmod(prompt_tokens, unit_tokens)
            least = full if answer else 0
            assert least <= len(blocks) <= full + bool(rest), "readers of workloads check their ids"
            assert not (unit_tokens % block_tokens and block_tokens % unit_tokens), "`ReplicaMemory` checks its blocks"
        self._num_shared = num_known = min(prompt_tokens, len(blocks) * unit_tokens) // block_tokens
        if answer:
            blocks = blocks[: prompt_tokens // unit_tokens]
            num_known = (len(blocks) + len(answer)) * unit_tokens // block_tokens
        self._blocks = blocks
        self._answer = answer
        self._num_known = num_known
        self._unit_tokens = unit_tokens
        self._block_tokens = block_tokens
        self._private = -1 - serial * _MOST_BLOCKS
        self._keys = array("q")

    def __getitem__(self, blocks: slice, /) -> "array[int]":
        """Keys of a range of blocks with an end."""
        keys = self._keys
        if blocks.stop > len(keys):
            if not keys:
                self._keys = keys = self._named()
            if blocks.stop > len(keys):
                keys.extend(range(self._private - len(keys), self._private - blocks.stop, -1))
        return keys[blocks]

    def of_prompt(self) -> "array[int]":
        """Keys of the blocks that others may share."""
        return self[: self._num_shared]

    def _named(self) -> "array[int]":
        unit, block, count = self._unit_tokens, self._block_tokens, self._num_known
        ids = array("q", self._blocks)
        ids.extend(self._answer)
        if block == unit:
            return ids[:count]
        if block > unit:
            width = block // unit if unit else 1
            return array("q", [block_key(ids[end - width : end]) for end in range(width, count * width + 1, width)])
        return array("q", np.array(ids, dtype=np.int64).repeat(unit // block)[:count].tobytes())


def block_key(ids: Ids) -> int:
    """Key of a block of one unit or more, by all of its ids: the last alone may also follow others in a file."""
    return ids[0] if len(ids) == 1 else int.from_bytes(blake2b(array("q", ids), digest_size=8).digest()) >> 1


class _Place:
    """A block by its path, perhaps with a copy; removed without a copy and followers."""

    __slots__ = ("children", "key", "member", "parent")

    def __init__(self, parent: "_Place | None", key: Hashable, member: int) -> None:
        self.parent = parent
        self.key = key
        self.member = member
        self.children: dict[Hashable, _Place] = {}


class HostTier:
    """Copies of blocks of several members, in `num_bytes` of host memory, >= 1.

    A block becomes the newest when it is put or loaded, also again; in one call the last block of the text first, so
    that it is dropped before those that it follows. Loading keeps the copy. `block_bytes` are `[M]` of a block of each
    member, >= 1.

    Attributes:
        used_bytes: of all copies.
        most_bytes: the largest `used_bytes`.
        stored, loaded, dropped: `[M]` blocks stored, loaded and dropped so far; putting one that is here already does
            not count as stored.
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
        """Number of consecutive blocks of a text here from block `start` on; changes nothing."""
        place: _Place | None = self._roots[member]
        for end, key in enumerate(keys):
            assert place is not None
            place = place.children.get(key)
            if place is None or (end >= start and place not in self._held):
                return max(end - start, 0)
        return max(len(keys) - start, 0)

    def load(self, member: int, keys: Sequence[Hashable], start: int) -> None:
        """Load the blocks of a text from block `start` on, all of which are here."""
        for place in self._places(member, keys)[start:][::-1]:
            self._held.move_to_end(place)
            self.loaded[member] += 1

    def put(self, member: int, keys: Sequence[Hashable], start: int) -> None:
        """Store the blocks of a text from block `start` on; those larger than the whole tier are dropped."""
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
                self._drop_oldest()
            self.most_bytes = max(self.most_bytes, self.used_bytes)

    def _places(self, member: int, keys: Sequence[Hashable]) -> list[_Place]:
        """Places of all blocks of a text, made where missing."""
        place = self._roots[member]
        found = []
        for key in keys:
            after = place.children.get(key)
            if after is None:
                after = place.children[key] = _Place(place, key, member)
            found.append(after)
            place = after
        return found

    def _drop_oldest(self) -> None:
        place, _ = self._held.popitem(last=False)
        self.used_bytes -= self._block_bytes[place.member]
        self.dropped[place.member] += 1
        while place.parent is not None and not place.children and place not in self._held:
            del place.parent.children[place.key]
            place = place.parent


class Keys(Protocol):
    """One key per block of a text, such as `BlockKeys` or a `Run`. Equal keys after equal keys: equal blocks."""

    def __getitem__(self, blocks: slice, /) -> Run:
        """Keys of a range of blocks; fewer at the end of the text."""


class _Held:
    """Units of one owner's text: `num_cached` in the tree, up to its tip, and others after them.

    Groups with a window hold those from `near_from` on for it.
    """

    __slots__ = ("near_from", "num_cached", "num_units", "tip")

    def __init__(self, tip: PrefixNode, num_cached: int, near_from: int) -> None:
        self.tip = tip
        self.num_cached = num_cached
        self.num_units = num_cached
        self.near_from = near_from


class MemberKv:
    """Blocks of one member. An owner is an integer of the caller, from `open` to `close`.

    - `open` takes the cached prefix: its blocks leave the queue of eviction.
    - `reserve` takes free blocks first, then evicts exactly the missing number, in the order of `PrefixTree`.
    - `commit` puts full blocks into the cache at once. If an equal block is cached (two requests computed it at the
      same time, or it was computed again after `drop_units`), the owner shares it and its own is freed.
    - `close` frees blocks that are not full, or not committed; of the others those without other owners join the queue
      of eviction, the last of the text first. Owners that end in one step are released in the order of the calls.

    A **unit** is `block_tokens` tokens of a text, one block of each group of layers (`KvWindow`). Groups with a window
    free blocks before it by `slide`. Of a unit that owners share, the one that computed it holds these blocks. A cached
    unit without an owner holds blocks of all groups, for which others are evicted where its owner had freed some; until
    then a hit takes them as there. In vLLM they stay cached as long as nothing needs room, and are found or not.

    Attributes:
        limits: of the member.
        free_blocks: that nothing holds.
        each: blocks of a unit.
    """

    __slots__ = (
        "_asked_blocks", "_asked_tokens", "_block_tokens", "_found_blocks", "_held", "_most_near", "_near",
        "_tree", "_whole", "_window", "each", "free_blocks", "limits",
    )  # fmt: skip

    def __init__(self, limits: KvLimits) -> None:
        self.limits = limits
        self.free_blocks = limits.num_blocks
        self._block_tokens = limits.block_tokens
        window = limits.window
        self._whole, self._near, self._window = (
            (1, 0, 0) if window is None else (window.whole, window.near, window.tokens)
        )
        self.each, self._most_near = limits.groups, limits.most_near
        self._tree = PrefixTree()
        self._held: dict[int, _Held] = {}
        self._asked_blocks = self._asked_tokens = self._found_blocks = 0

    @property
    def available_blocks(self) -> int:
        """Blocks available to owners: free ones, and evictable ones (cached, without an owner)."""
        return self.free_blocks + self.each * self._tree.num_evictable

    @property
    def used_blocks(self) -> int:
        """Blocks that owners hold; a shared one counts once."""
        return self.limits.num_blocks - self.free_blocks - self.each * self._tree.num_evictable

    @property
    def first_keys(self) -> Container[int]:
        """Keys of the first blocks of all cached texts, a live view."""
        return self._tree.root.children.keys()

    @property
    def common_tokens(self) -> int:
        """Length of the longest common prefix of all owners in cached blocks; 0 for fewer than two owners."""
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
        """Tokens in cached blocks that `owners` hold in common, less those of each such block once.

        A run of blocks counts if the text up to its end has `least_tokens`, and `least_owners` >= 2 hold it. It ends
        where its owners part, not where the tree branches for a text that none of them holds.
        """
        found: dict[PrefixNode, tuple[int, int]] = {}  # end of its text in blocks, owners
        for owner in owners:
            held = self._held[owner]
            node, end = held.tip, held.num_cached
            while node.parent is not None:
                found[node] = end, found[node][1] + 1 if node in found else 1
                end -= len(node.keys)
                node = node.parent
        blocks, ends = 0, dict[PrefixNode, int]()
        for node, (end, count) in found.items():  # a block comes before its parent, if both have the same owners
            end = ends.get(node, end)
            if count >= least_owners and end * self._block_tokens >= least_tokens:
                blocks += (count - 1) * len(node.keys)
            if node.parent in found and found[node.parent][1] == count:
                ends[node.parent] = end
        return blocks * self._block_tokens

    @property
    def hits(self) -> Lookups:
        """Look-ups and hits of `open` so far, without resumed requests.

        Blocks dropped by `drop_units` count as looked up and not found.
        """
        return Lookups(
            asked_blocks=self._asked_blocks,
            found_blocks=self._found_blocks,
            asked_tokens=self._asked_tokens,
            found_tokens=self._found_blocks * self._block_tokens,
        )

    def lookup(self, keys: Run) -> int:
        """Number of leading blocks that are cached; changes nothing."""
        return self._tree.match(keys).num_blocks

    def hit_tokens(self, keys: Keys, text_tokens: int) -> int:
        """Tokens of a text that the prefix cache holds; changes nothing."""
        return self._hit(keys, text_tokens)[0] * self._block_tokens

    def usable_tokens(self, keys: Keys, text_tokens: int) -> int:
        """The return value of `open`; changes nothing."""
        return self.hit_tokens(keys, text_tokens)

    def frozen(self) -> "MemberKv":
        """A snapshot of the prefix cache, for `lookup` and `hit_tokens` only."""
        copied = MemberKv(self.limits)
        copied._tree = self._tree.copy()
        return copied

    def fits(self, keys: Keys, text_tokens: int, num_tokens: int) -> bool:
        """Whether `open`, and after it `reserve` of `num_tokens`, would both do; changes nothing.

        So an engine that cannot admit a request yet does not change the order of eviction and the hits, and checks
        every member before the first one opens.
        """
        units = -(-num_tokens // self._block_tokens)
        available = self.available_blocks
        if units * self.each <= available:
            return True
        # Only hit units that are used already save any: others are taken from the available ones.
        used = self._hit(keys, text_tokens)[1]
        if not self._near:
            return units - used <= available
        near_from = max(used, self._before_window(self.usable_tokens(keys, text_tokens)), units - self._most_near)
        return self._whole * (units - used) + self._near * (units - min(near_from, units)) <= available

    def open(
        self, owner: int, keys: Keys, text_tokens: int, *, resumes: bool = False, hit_tokens: int | None = None
    ) -> int:
        """Give a new owner the blocks of its text that are cached.

        Args:
            owner: that holds nothing yet.
            keys: of the text's blocks.
            text_tokens: of the whole text, >= 1: the prompt, and what was emitted before a preemption. Its last token
                is never in a hit, since what follows it is computed from it.
            resumes: after a preemption; not counted in `hits`, which its own blocks would inflate.
            hit_tokens: the current `hit_tokens` of the text; None: it is looked up.

        Returns:
            Tokens that the owner holds now, a multiple of `block_tokens`.

        Raises:
            ValueError: the owner holds something.
        """
        if owner in self._held:
            raise ValueError(f"owner {owner} is open already")
        num_blocks = near_from = 0
        tip = self._tree.root
        if self.limits.prefix_cache:
            if hit_tokens is None:
                hit_tokens = self.hit_tokens(keys, text_tokens)
            num_blocks = hit_tokens // self._block_tokens
            if num_blocks:
                evictable = self._tree.num_evictable
                tip = self._tree.take(keys[:num_blocks])
                taken = evictable - self._tree.num_evictable  # the last ones
                near_from = min(max(num_blocks - taken, self._before_window(hit_tokens)), num_blocks)
                self.free_blocks += self._near * (taken - num_blocks + near_from)
            if not resumes:
                self._asked_blocks += text_tokens // self._block_tokens
                self._asked_tokens += text_tokens
                self._found_blocks += num_blocks
        self._held[owner] = _Held(tip, num_blocks, near_from)
        return num_blocks * self._block_tokens

    def reserve(self, owner: int, num_tokens: int, read_tokens: int = 0) -> bool:
        """Make an owner hold blocks for at least `num_tokens` in total; False, and nothing has changed, if too few.

        `read_tokens` of them are computed: windows of later ones begin after these.
        """
        held = self._held[owner]
        more = -(-num_tokens // self._block_tokens) - held.num_units
        return more <= 0 or self.grow(owner, more, read_tokens) is not None

    def grow(self, owner: int, num_units: int, read_tokens: int = 0) -> int | None:
        """As `reserve`, `num_units` more; returns the blocks more that it holds. None: too few."""
        held, blocks = self._held[owner], num_units
        end, near_from = held.num_units + num_units, held.near_from
        if self._near:
            near_from = min(max(near_from, self._before_window(read_tokens), end - self._most_near), end)
            blocks = self._whole * num_units + self._near * (num_units - near_from + held.near_from)
        if not self.take(blocks):
            return None
        held.num_units, held.near_from = end, near_from
        return blocks

    def take(self, num_blocks: int) -> bool:
        """Take blocks for an owner; False, and nothing has changed, if free and evictable ones do not suffice."""
        short = num_blocks - self.free_blocks
        if short > 0:
            units = -(-short // self.each)
            if units > self._tree.num_evictable:
                return False
            self._evict(units)
        self.free_blocks -= num_blocks
        return True

    def slide(self, owner: int, read_tokens: int) -> int:
        """Free an owner's blocks before the window of what follows its first `read_tokens`; returns how many."""
        held = self._held[owner]
        near_from = min(max(held.near_from, self._before_window(read_tokens)), held.num_units)
        blocks = self._near * (near_from - held.near_from)
        self.free_blocks += blocks
        held.near_from = near_from
        return blocks

    def _before_window(self, read_tokens: int) -> int:
        """Whole units before the window of the token after the first `read_tokens`."""
        return max(read_tokens - self._window + 1, 0) // self._block_tokens if self._near else 0

    def _evict(self, num_units: int) -> None:
        self._tree.evict(num_units)
        self.free_blocks += self.each * num_units

    def commit(self, owner: int, num_tokens: int, keys: Keys) -> None:
        """Put the full blocks of an owner's first `num_tokens`, all of them computed, into the prefix cache.

        Raises:
            ValueError: the owner holds fewer blocks, or `keys` end before them.
        """
        held = self._held[owner]
        full = num_tokens // self._block_tokens
        if num_tokens > held.num_units * self._block_tokens:
            held_tokens = held.num_units * self._block_tokens
            raise ValueError(f"num_tokens of owner {owner} must be <= {held_tokens}, which it holds, got {num_tokens}")
        more = full - held.num_cached
        if more <= 0 or not self.limits.prefix_cache:
            return
        new = keys[held.num_cached : full]
        if len(new) < more:
            raise ValueError(f"keys of owner {owner} must be >= {full}, got {held.num_cached + len(new)}")
        evictable = self._tree.num_evictable
        held.tip, shared = self._tree.extend(held.tip, new)
        held.num_cached = full
        self.free_blocks += self._whole * shared + self._near * (evictable - self._tree.num_evictable)

    def close(self, owner: int) -> None:
        """Release everything that an owner holds; it may open again."""
        held = self._held.pop(owner)
        evictable = self._tree.num_evictable
        self._tree.release(held.tip)
        self.free_blocks += self._whole * (held.num_units - held.num_cached)
        if self._near:
            kept = self._tree.num_evictable - evictable
            self.free_blocks += self._near * (held.num_units - held.near_from - kept)
            if self.free_blocks < 0:
                self._evict(-(self.free_blocks // self.each))

    def _hit(self, keys: Keys, text_tokens: int) -> tuple[int, int]:
        """Blocks of a hit, and how many of them are used."""
        if not self.limits.prefix_cache:
            return 0, 0
        found = self._tree.match(keys[: (text_tokens - 1) // self._block_tokens])
        hit = max(0, found.num_blocks - self.limits.drop_units)
        return hit, min(found.num_referenced, hit)


class FirstBlocks(NamedTuple):
    """The first blocks of cached texts."""

    unit_tokens: int  # of a unit of the workload; 0 if there are no ids
    block_tokens: int  # of a block, >= 1
    keys: Container[int]  # of all texts' first blocks, a live view


def first_key(arrival: Arrival, unit_tokens: int, block_tokens: int) -> int | None:
    """Key of a prompt's first block in `BlockKeys`; None: others can share no block of the prompt."""
    blocks = arrival.blocks
    if min(arrival.prompt_tokens, len(blocks) * unit_tokens) < block_tokens:
        return None
    return block_key(blocks[: max(block_tokens // unit_tokens, 1)])


class OffloadingKv(MemberKv):
    """As `MemberKv`, but a hit continues in host memory after the part in device memory.

    `open` takes blocks for the part in host memory, which evicts others as `reserve` does, and puts them into the
    prefix cache. `hits`, and `hit_tokens` for routers, are those of device memory alone.
    """

    __slots__ = ("_host", "_member")

    def __init__(self, limits: KvLimits, host: HostTier, member: int) -> None:
        super().__init__(limits)
        self._host = host
        self._member = member
        # An evicted path of blocks, of which the last ones leave device memory.
        self._tree = PrefixTree(lambda path, count: host.put(member, path, len(path) - count))

    def usable_tokens(self, keys: Keys, text_tokens: int) -> int:
        return self._whole_hit(keys, text_tokens)[1] * self._block_tokens

    def hit_tokens(self, keys: Keys, text_tokens: int) -> int:
        """Of device memory; see `MemberKv`."""
        return super()._hit(keys, text_tokens)[0] * self._block_tokens

    def open(
        self, owner: int, keys: Keys, text_tokens: int, *, resumes: bool = False, hit_tokens: int | None = None
    ) -> int:
        """See `MemberKv`; there must be room for all of the hit, by `fits` of the tokens of the text."""
        on_device, whole, _ = self._whole_hit(keys, text_tokens)
        if on_device < whole:  # blocks evicted to the host meanwhile must not drop those that are loaded
            self._host.load(self._member, keys[:whole], on_device)
        super().open(owner, keys, text_tokens, resumes=resumes, hit_tokens=on_device * self._block_tokens)
        num_tokens = whole * self._block_tokens
        enough = self.reserve(owner, num_tokens, num_tokens)
        assert enough, "`fits` was not asked"
        self.commit(owner, num_tokens, keys)
        return num_tokens

    def _hit(self, keys: Keys, text_tokens: int) -> tuple[int, int]:
        on_device, _, num_referenced = self._whole_hit(keys, text_tokens)
        return on_device, num_referenced

    def _whole_hit(self, keys: Keys, text_tokens: int) -> tuple[int, int, int]:
        """Blocks of a hit: on the device, in total, and on the device with an owner."""
        if not self.limits.prefix_cache:
            return 0, 0, 0
        within = keys[: (text_tokens - 1) // self._block_tokens]
        found = self._tree.match(within)
        whole = found.num_blocks + self._host.num_found(self._member, within, found.num_blocks)
        whole = max(0, whole - self.limits.drop_units)
        return min(found.num_blocks, whole), whole, min(found.num_referenced, whole)


class HostMemory:
    """Takes evicted blocks of members, and adds up the seconds of loading them."""

    def __init__(self, offload: Offload) -> None:
        members = list(offload.members.values())
        self._numbers = {name: number for number, name in enumerate(offload.members)}
        self._block_ps = [member.block_ps for member in members]
        self._devices = [member.device for member in members]
        self._tier = HostTier(offload.host_bytes, [member.block_bytes for member in members])
        self._seen = [0] * len(members)
        self._load_ps = 0
        self._latest = (0, 0)  # start and duration

    def member(self, name: str, limits: KvLimits) -> MemberKv:
        """The memory of a member, with offloading if it is an offloaded member."""
        number = self._numbers.get(name)
        return MemberKv(limits) if number is None else OffloadingKv(limits, self._tier, number)

    def take_load_ps(self, start_ps: int) -> int:
        """Picoseconds of all blocks loaded since the last call, from `start_ps` on.

        Links of devices work in parallel, and each carries its blocks in turn.
        """
        loaded = self._tier.loaded
        if loaded == self._seen:
            return 0
        by_device: dict[str, int] = {}
        for device, block_ps, now, before in zip(self._devices, self._block_ps, loaded, self._seen, strict=True):
            by_device[device] = by_device.get(device, 0) + (now - before) * block_ps
        self._seen = list(loaded)
        load_ps = max(by_device.values())
        self._load_ps += load_ps
        self._latest = start_ps, load_ps
        return load_ps

    def totals(self, until_ps: int) -> HostTotals:
        """See `HostTotals`; the run ends then, and later loading does not count."""
        tier = self._tier
        start_ps, load_ps = self._latest
        after_ps = min(max(start_ps + load_ps - until_ps, 0), load_ps)
        return HostTotals(
            stored={name: tier.stored[number] for name, number in self._numbers.items()},
            loaded={name: tier.loaded[number] for name, number in self._numbers.items()},
            dropped={name: tier.dropped[number] for name, number in self._numbers.items()},
            most_bytes=tier.most_bytes,
            load_ps=self._load_ps - after_ps,
        )
