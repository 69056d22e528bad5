"""A member's cache with a prefix cache: beginnings of texts lie in blocks that requests share, the rest in their rows.

A text is cut in two. Its first tokens, the **base**, are read from the store of blocks, the others from the request's
row, in which the slots are counted from the base on. A block that enters the store is moved out of its row, so that it
is held once, whoever shares it. Rolling back below the base lowers the base: blocks hold committed text, and never
change.

Letters as in `member_kv`; B requests of a forward, T new tokens, P the most tokens of one base, Q the most new tokens.
"""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.prefixes.member_prefixes import Entered, Hit
from ...decoding.prefixes.size import PrefixCacheSize
from .mask_cache import MaskCache
from .member_kv import SLOT_STEP, KVShape, MemberKV
from .placement import Placement, Places, Prefix, SharedKind
from .slot_cache import SlotCache
from .zeros import NO_MEMORY, zeros


class _Base:
    """What a request reads from the store: the first `num_tokens` of `slots`, which are those of its blocks."""

    __slots__ = ("num_tokens", "slots")

    def __init__(self, slots: NDArray[np.int64]) -> None:
        self.num_tokens = len(slots)
        self.slots = slots


def store_bytes(shape: KVShape, size: PrefixCacheSize) -> int:
    """Memory of a member's blocks."""
    return size.num_tokens * shape.bytes_per_slot


class PrefixedKV(MemberKV):
    """Keeps what `decoding.prefixes` says is cached; stands in front of either kind of cache, whose rows it shortens.

    Args:
        shape: of one slot.
        size: of the store.

    Attributes:
        shared_attention: see `Prefix.attention`; set by whoever makes the cache.
    """

    shared_attention: SharedKind = "auto"

    def _make_store(self, size: PrefixCacheSize) -> None:
        """Take the memory of all blocks, `[L, slots, 2, H, D]`: as many as the user said, no more and no less.

        Raises:
            MemoryError: the device has none.
        """
        shape = self.shape
        self._size = size
        slots = (shape.num_layers, size.num_tokens, 2, shape.num_heads, shape.head_width)
        try:
            self._store = zeros(slots, shape.dtype, shape.device)
        except NO_MEMORY:
            wanted = f"{size.num_blocks} blocks of {size.block_tokens} tokens"
            raise MemoryError(f"{shape.device} has no room for a prefix cache of {wanted}") from None
        self._bases: dict[str, _Base] = {}
        self._latest: tuple[object, Tensor, int] | None = None

    # -- what is held

    @property
    def held_bytes(self) -> int:
        """Memory of all slots, of rows and of blocks."""
        return super().held_bytes + store_bytes(self.shape, self._size)

    @property
    def live_slots(self) -> int:
        """Those of rows whose token belongs to a text, and all of the store, which nobody else can have."""
        return sum(self._length(row) for row in self.rows.values()) + self._size.num_tokens

    def length(self, request_id: str) -> int:
        """Tokens of the request in blocks and in its row."""
        return self._base(request_id) + super().length(request_id)

    def free(self, request_id: str) -> None:
        """See `MemberKV`; its blocks stay."""
        super().free(request_id)
        self._bases.pop(request_id, None)

    def roll_back(self, request_id: str, num_tokens: int) -> None:
        """See `MemberKV`."""
        base, row = self._bases.get(request_id), self.rows.get(request_id)
        own = 0 if row is None else self._length(row)
        below = 0 if base is None else base.num_tokens
        if num_tokens > below + own:
            raise ValueError(
                f"num_tokens must be <= {below + own}, what the cache holds of {request_id}, got {num_tokens}"
            )
        if row is not None and num_tokens < below + own and own:
            self._shorten(row, max(0, num_tokens - below))
        if base is not None and num_tokens < below:
            base.num_tokens = num_tokens

    # -- blocks

    def attach(self, hits: Sequence[tuple[str, Hit]]) -> None:
        """Let requests that hold nothing read what is cached of their texts; there is room for what is copied."""
        copied = [(request_id, hit) for request_id, hit in hits if hit.branch is not None]
        for request_id, hit in hits:
            self._bases[request_id] = _Base(self._slots_of(hit.blocks))
        if not copied:
            return
        copied = [copied[index] for index in self.in_order([request_id for request_id, _ in copied])]
        branches = [hit.branch for _, hit in copied if hit.branch is not None]
        size = self._size.block_tokens
        firsts = [np.arange(branch.num_equal) + branch.block * size for branch in branches]
        read = torch.from_numpy(np.concatenate(firsts)).to(self.shape.device)
        # As a forward would, but that the keys and values are there.
        placed = super().place([request_id for request_id, _ in copied], [branch.num_equal for branch in branches])
        for layer in range(self.shape.num_layers):
            self.write(layer, placed, self._store[layer].index_select(0, read))

    def absorb(self, entered: Sequence[tuple[str, Entered]]) -> None:
        """Move blocks out of the rows that computed them; where another request's are there already, forget these."""
        moved = 0
        for request_id, blocks in entered:
            base, row = self._bases[request_id], self.rows[request_id]
            start = len(base.slots) - base.num_tokens + blocks.num_shared * self._size.block_tokens
            slots = self._slots_of(blocks.blocks)
            new = slots[blocks.num_shared * self._size.block_tokens :]
            if len(new):
                self._store[:, torch.from_numpy(new).to(self.shape.device)] = self._taken(row, start, len(new))
            base.slots = np.concatenate([base.slots, slots])
            gone = len(base.slots) - base.num_tokens
            self._drop(row, gone)
            base.num_tokens += gone
            moved = max(moved, gone)
        if moved > SLOT_STEP:  # rows were as long as a prompt, and need not be any more
            with suppress(*NO_MEMORY):  # a smaller copy needs memory, too; where there is none, they stay
                self.truncate()

    # -- forwards

    def place(self, request_ids: Sequence[str], counts: Sequence[int]) -> Placement:
        """See `MemberKV`."""
        own = super().place(request_ids, counts)
        bases = tuple(self._base(request_id) for request_id in request_ids)
        most = max(bases)
        if not most:
            return own
        slots, num_common = self._read_slots(request_ids, bases)
        first, mask = bases[0], own.mask
        positions: Places
        if isinstance(own.positions, slice):
            positions = slice(own.positions.start + first, own.positions.stop + first)
        else:
            behind = np.repeat(np.array(bases), own.counts)
            positions = own.positions + torch.from_numpy(behind).to(self.shape.device)
        if mask is not None:
            ends = torch.from_numpy(np.array(bases)).to(self.shape.device)
            held = torch.arange(most, device=self.shape.device) < ends[:, None]
            mask = torch.cat([held[:, None, None].expand(-1, -1, mask.shape[2], -1), mask], dim=-1)
        return own._replace(
            positions=positions,
            num_slots=most + own.num_slots,
            mask=mask,
            prefix=Prefix(slots, num_common, own, self.shared_attention),
        )

    def read(self, layer: int, placement: Placement) -> tuple[Tensor, Tensor]:
        """See `MemberKV`; a copy where there is a prefix."""
        prefix = placement.prefix
        if prefix is None:
            return super().read(layer, placement)
        stored = self._store[layer].index_select(0, prefix.slots.flatten()).view(*prefix.slots.shape, *self._each)
        both = torch.cat([stored, self._slots_read(layer, prefix.own)], dim=1)
        keys, values = both.permute(2, 0, 3, 1, 4).unbind(0)
        return keys, values

    def read_common(self, layer: int, prefix: Prefix) -> tuple[Tensor, Tensor]:
        """Keys and values `[H, C, D]` of the C slots that all requests of a forward have in common, once."""
        stored = self._store[layer].index_select(0, prefix.slots[0, : prefix.num_common])
        keys, values = stored.permute(1, 2, 0, 3).unbind(0)
        return keys, values

    @property
    def _each(self) -> tuple[int, int, int]:
        return 2, self.shape.num_heads, self.shape.head_width

    @abstractmethod
    def _taken(self, row: int, start: int, count: int) -> Tensor:
        """`[L, count, 2, H, D]` of the tokens of a row from the one at index `start` on."""

    @abstractmethod
    def _drop(self, row: int, count: int) -> None:
        """The first tokens of a row are in it no more."""

    def _base(self, request_id: str) -> int:
        base = self._bases.get(request_id)
        return 0 if base is None else base.num_tokens

    def _slots_of(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        size = self._size.block_tokens
        slots: NDArray[np.int64] = (np.array(blocks, np.int64)[:, None] * size + np.arange(size)).ravel()
        return slots

    def _read_slots(self, request_ids: Sequence[str], bases: tuple[int, ...]) -> tuple[Tensor, int]:
        """`[B, P]` slots of the store, and how many all requests have in common; as in the forward before if equal."""
        # A base that is as long, of the same object, is the same: its slots are only ever replaced by longer ones.
        asked = [(self._bases.get(request_id), end) for request_id, end in zip(request_ids, bases, strict=True)]
        if self._latest is not None and self._latest[0] == asked:
            return self._latest[1:]
        slots = np.zeros((len(bases), max(bases)), np.int64)
        for index, (base, end) in enumerate(asked):
            if base is not None:
                slots[index, :end] = base.slots[:end]
        same = (slots == slots[0]).all(axis=0)[: min(bases)]
        num_common = int(same.argmin()) if not same.all() else len(same)
        read = torch.from_numpy(slots).to(self.shape.device)
        self._latest = asked, read, num_common
        return read, num_common


class PrefixedSlotCache(PrefixedKV, SlotCache):
    """Slot == position beyond the base."""

    def __init__(self, shape: KVShape, size: PrefixCacheSize) -> None:
        super().__init__(shape)
        self._make_store(size)

    def live_slots_of(self, request_id: str) -> list[int]:
        """Slots of the row, in the order of their positions."""
        return list(range(self.length(request_id) - self._base(request_id)))

    def keep_path(self, request_id: str, num_tokens: int, kept: Sequence[int]) -> None:
        """See `MemberKV`."""
        super().keep_path(request_id, num_tokens - self._base(request_id), kept)

    def _taken(self, row: int, start: int, count: int) -> Tensor:
        return self._kv[:, row, start : start + count]

    def _drop(self, row: int, count: int) -> None:
        left = self._length(row) - count
        self._most[row] = self._reach(row)
        if left:
            self._kv[:, row, :left] = self._kv[:, row, count : count + left].clone()
        self._lengths[row] = left


class PrefixedMaskCache(PrefixedKV, MaskCache):
    """Append-only with holes beyond the base."""

    def __init__(self, shape: KVShape, size: PrefixCacheSize, *, dead_share: float) -> None:
        super().__init__(shape, dead_share=dead_share)
        self._make_store(size)

    def keep_path(self, request_id: str, num_tokens: int, kept: Sequence[int]) -> None:
        """See `MemberKV`."""
        super().keep_path(request_id, num_tokens - self._base(request_id), kept)

    def _taken(self, row: int, start: int, count: int) -> Tensor:
        slots = torch.tensor(self._slots[row][start : start + count], device=self.shape.device)
        return self._kv[:, row].index_select(1, slots)

    def _drop(self, row: int, count: int) -> None:
        slots = self._slots[row]
        self._valid[row, slots[:count]] = False
        del slots[:count]
