"""A member's cache with a prefix cache: beginnings of texts are in blocks that requests share, the rest in their rows.

A text's first tokens, the **base**, are read from the store of blocks, the others from the request's row, whose slots
are counted from the base on. A block that enters the store is moved out of its row, so that it is held once. Rolling
back below the base lowers the base: blocks hold committed text, and never change.

Attention over a common prefix may be computed once for all rows (Hydragen, Juravsky et al. 2024, arXiv:2402.05099,
section 3.1): with l_1, l_2 the log-sum-exps of both parts, attention = sigmoid(l_1 - l_2) a_1 + (1 - sigmoid(l_1 -
l_2)) a_2. Which way is faster is timed at the first forward of each kind, on its own tensors, and remembered.

Letters: B rows, Q queries of a row, H key and value heads, C common slots, S slots of a row's own, D head width, T new
tokens, P slots that a forward reads out of a prefix cache.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..decoding.prefix_cache import Entered, Hit, PrefixCacheSize
from .caches import NO_MEMORY, SLOT_STEP, KVShape, MaskCache, MemberKV, Placement, Places, Prefix, SlotCache, zeros
from .clock import timed
from .forward_kinds import SharedKind
from .products import KnownChoices

# keys and values
KeysValues = tuple[Tensor, Tensor]


def attend_in_two_parts(
    queries: Tensor,
    common: KeysValues,
    own: KeysValues,
    *,
    common_mask: Tensor | None,
    own_mask: Tensor | None,
    scale: float,
) -> Tensor:
    """`[B, H, Q, D]`, equal to attention over both parts together except for rounding.

    Args:
        queries: `[B, H, Q, D]`.
        common: two of `[H, C, D]`.
        own: two of `[B, H, S, D]`.
        common_mask: `[B, 1, Q, C]` added to scores, 0 or -inf; None attends to all. A query may attend to none of it.
        own_mask: `[B, 1, Q, S]` in the same form; every query attends to its own token at least.
        scale: of the scores.
    """
    rows, heads, count, width = queries.shape
    flat = queries.transpose(0, 1).reshape(1, heads, rows * count, width)
    flat_mask = None if common_mask is None else common_mask.reshape(1, 1, rows * count, -1)
    found, sums = attend_with_sums(flat, common[0][None], common[1][None], flat_mask, scale)
    found = found.view(heads, rows, count, width).transpose(0, 1)
    sums = sums.view(heads, rows, count).transpose(0, 1)
    own_found, own_sums = attend_with_sums(queries, *own, own_mask, scale)
    share = torch.sigmoid(sums - own_sums)[..., None].to(found.dtype)
    if common_mask is not None:
        blind = torch.isneginf(common_mask).all(dim=-1)[..., None]
        # A mean over nothing is undefined: it must not reach the sum, not even times 0.
        share, found = share.masked_fill(blind, 0.0), found.masked_fill(blind, 0.0)
    return torch.lerp(own_found, found, share)


def attend_with_sums(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention `[B, H, Q, D]`, and the log-sum-exps `[B, H, Q]` of its scores; as in `attend_in_two_parts`."""
    # Private: torch's own attention calls it on a CPU; other versions of torch may lack it.
    kernel = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    if queries.device.type == "cpu" and kernel is not None:
        found, sums = kernel(queries, keys, values, 0.0, False, attn_mask=mask, scale=scale)  # noqa: FBT003
        return found, sums
    return by_products(queries, keys, values, mask, scale)


def by_products(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """As `attend_with_sums`, by two products of matrices, on every device."""
    scores = torch.matmul(queries * scale, keys.transpose(-1, -2)).float()
    if mask is not None:
        scores = scores + mask
    sums = torch.logsumexp(scores, dim=-1)
    probs = torch.exp(scores - sums[..., None]).to(values.dtype)
    return torch.matmul(probs, values), sums


ALONE, SHARED = "alone", "shared"
_RACES = 3


class SharedAttention:
    """Attention of one model's forwards. Mutated by `attend`, which remembers the faster way.

    `groups` are query heads of each key head; `known` are earlier choices.
    """

    def __init__(self, shape: KVShape, *, groups: int, scale: float, known: KnownChoices) -> None:
        dtype = str(shape.dtype).removeprefix("torch.")
        self._what = f"{shape.num_heads}x{groups} heads of {shape.head_width}, {dtype} on {shape.device.type}"
        self._scale = scale
        self._known = known
        self._chosen: dict[tuple[int, ...], bool] = {}

    def attend(
        self, layer: int, queries: Tensor, placement: Placement, cache: MemberKV, mask: Tensor | None, *, narrow: bool
    ) -> Tensor:
        """`[B, H, Q, D]` for queries of that shape; keys and values are in the cache.

        Args:
            layer: of the cache.
            queries: query heads of the same keys side by side as more queries.
            placement: of the forward.
            cache: that made the placement.
            mask: `[B, 1, Q, S]` added to scores; None attends to all.
            narrow: whether the mask may exclude slots before the rows' new tokens (a sliding window).
        """

        def alone() -> Tensor:
            keys, values = cache.read(layer, placement)
            return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=self._scale)

        prefix = placement.prefix
        if prefix is None or not prefix.num_common or len(placement.counts) == 1 or prefix.attention == "off":
            return alone()

        def shared() -> Tensor:
            keys, values = cache.read(layer, self._rest(placement, prefix))
            common = prefix.num_common
            return attend_in_two_parts(
                queries,
                cast(PrefixedKV, cache).read_common(layer, prefix),
                (keys, values),
                common_mask=mask[..., :common] if mask is not None and narrow else None,
                own_mask=None if mask is None else mask[..., common:],
                scale=self._scale,
            )

        if prefix.attention == "on" or self._pays(queries, placement, prefix, alone, shared):
            return shared()
        return alone()

    def _rest(self, placement: Placement, prefix: Prefix) -> Placement:
        """A placement without the common slots."""
        common = prefix.num_common
        if prefix.num_slots == common:
            return prefix.own
        after = prefix._replace(slots=prefix.slots[:, common:], num_common=0)
        return placement._replace(prefix=after, num_slots=placement.num_slots - common)

    def _pays(
        self,
        queries: Tensor,
        placement: Placement,
        prefix: Prefix,
        alone: Callable[[], Tensor],
        shared: Callable[[], Tensor],
    ) -> bool:
        sizes = (len(queries), queries.shape[2], prefix.num_common, placement.num_slots - prefix.num_common)
        # Within a power of two all use the first one's choice.
        like = tuple(size.bit_length() for size in sizes)
        found = self._chosen.get(like)
        if found is None:
            rows, count, common, own = (2**size - 1 for size in like)
            what = f"attention of up to {rows} rows of {count} over {common} shared and {own}: {self._what}"
            known = self._known.get(what, 1)
            if not known:
                # The first run of each has one-time costs.
                shared_s, alone_s = (
                    median([timed(attend, queries.device) for _ in range(_RACES + 1)][1:]) for attend in (shared, alone)
                )
                known = [SHARED if shared_s < alone_s else ALONE]
                self._known.note(what, known)
            found = self._chosen[like] = known[0] == SHARED
        return found


class _Base:
    """What a request reads from the store: the first `num_tokens` of `slots`, its blocks' slots."""

    __slots__ = ("num_tokens", "slots")

    def __init__(self, slots: NDArray[np.int64]) -> None:
        self.num_tokens = len(slots)
        self.slots = slots


def store_bytes(shape: KVShape, size: PrefixCacheSize) -> int:
    """Memory of a member's blocks."""
    return size.num_tokens * shape.bytes_per_slot


class PrefixedKV(MemberKV):
    """Holds the blocks that `decoding.prefix_cache` caches, in front of either kind of cache, with shorter rows.

    `shared_attention` is as `Prefix.attention`; the cache's maker sets it.
    """

    shared_attention: SharedKind = "auto"

    def _make_store(self, size: PrefixCacheSize) -> None:
        """Allocate exactly all blocks, `[L, slots, 2, H, D]`; raises MemoryError."""
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
        """Slots of rows whose token belongs to a text, and all of the store, which has no other use."""
        return sum(self._length(row) for row in self.rows.values()) + self._size.num_tokens

    def free(self, request_id: str) -> None:
        """See `MemberKV`; its blocks are kept."""
        super().free(request_id)
        self._bases.pop(request_id, None)

    def roll_back(self, request_id: str, num_tokens: int) -> None:
        super().roll_back(request_id, num_tokens)
        base = self._bases.get(request_id)
        if base is not None:
            base.num_tokens = min(base.num_tokens, num_tokens)

    # -- blocks

    def attach(self, hits: Sequence[tuple[str, Hit]]) -> None:
        """Let requests that hold nothing read the cached tokens of their texts; needs room for copied ones."""
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
        # As for a forward, except that keys and values exist.
        placed = super().place([request_id for request_id, _ in copied], [branch.num_equal for branch in branches])
        for layer in range(self.shape.num_layers):
            self.write(layer, placed, self._store[layer].index_select(0, read))

    def absorb(self, entered: Sequence[tuple[str, Entered]]) -> None:
        """Move blocks out of the rows that computed them; drop these where the store has another request's."""
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
        if moved > SLOT_STEP:  # rows were as long as a prompt, and can now be shorter
            with suppress(*NO_MEMORY):  # a smaller copy needs memory too; without it they are kept
                self.truncate()

    # -- forwards

    def place(self, request_ids: Sequence[str], counts: Sequence[int]) -> Placement:
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
        stored = (
            self._store[layer].index_select(0, prefix.slots.flatten()).view(*prefix.slots.shape, *self._store.shape[2:])
        )
        both = torch.cat([stored, self._slots_read(layer, prefix.own)], dim=1)
        keys, values = both.permute(2, 0, 3, 1, 4).unbind(0)
        return keys, values

    def read_common(self, layer: int, prefix: Prefix) -> tuple[Tensor, Tensor]:
        """Keys and values `[H, C, D]` of the C slots common to all requests of a forward, once."""
        stored = self._store[layer].index_select(0, prefix.slots[0, : prefix.num_common])
        keys, values = stored.permute(1, 2, 0, 3).unbind(0)
        return keys, values

    @abstractmethod
    def _taken(self, row: int, start: int, count: int) -> Tensor:
        """`[L, count, 2, H, D]` of the tokens of a row from the one at index `start` on."""

    @abstractmethod
    def _drop(self, row: int, count: int) -> None:
        """Drop the first tokens of a row."""

    def _base(self, request_id: str) -> int:
        base = self._bases.get(request_id)
        return 0 if base is None else base.num_tokens

    def _slots_of(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        size = self._size.block_tokens
        slots: NDArray[np.int64] = (np.array(blocks, np.int64)[:, None] * size + np.arange(size)).ravel()
        return slots

    def _read_slots(self, request_ids: Sequence[str], bases: tuple[int, ...]) -> tuple[Tensor, int]:
        """`[B, P]` slots of the store, how many are common to all requests; reuses the last forward's if equal."""
        # A base of the same object and length is unchanged: its slots are only replaced by longer ones.
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

    def _taken(self, row: int, start: int, count: int) -> Tensor:
        slots = torch.tensor(self._slots[row][start : start + count], device=self.shape.device)
        return self._kv[:, row].index_select(1, slots)

    def _drop(self, row: int, count: int) -> None:
        slots = self._slots[row]
        self._valid[row, slots[:count]] = False
        del slots[:count]
