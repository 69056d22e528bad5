"""Keys and values of the requests that run: rows of slots, one row a request, in two kinds of cache.

`SlotCache`: a slot is a position, and rolling back is one integer. `MaskCache`: append-only with a validity mask
(SpecRouter, arXiv:2505.07680); all rows take new slots at the same columns, so rolled-back tokens and rows that are not
in a forward leave holes, which are masked. Where more than a stated share of the columns in use is dead (beyond the
longest text), live slots are moved together. A `Placement` says where the tokens of one ragged forward go and which
slots each attends to; `on_trees` makes it one of token trees. numpy computes the indices, in half of torch's time.

Letters: L layers, R rows, S slots attended to, H key and value heads, D head width, B requests, T new tokens of all of
them (request after request), Q the most of one, N new nodes of a tree, M its nodes in the cache, the new ones last.
"""

import ctypes
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from math import prod
from operator import add
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .forward_kinds import SharedKind


def total_bytes(device: torch.device) -> int:
    """Memory of a GPU, else of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_MAPS = Path("/proc/self/maps")
# `MADV_PAGEOUT` of Linux: the system may drop pages. Values do not change: pages are read again at the next access.
_PAGE_OUT, _PAGE_BYTES = 21, 4096
# Fewer bytes are not worth reading all of `_MAPS` for.
_LEAST_LET_GO_BYTES = 2**16


def let_go(values: Tensor) -> None:
    """Tell the system that contiguous values, if a file backs them and they are many, are not needed in memory."""
    first = values.data_ptr()
    if values.device.type != "cpu" or values.nbytes < _LEAST_LET_GO_BYTES or not _in_a_file(first):
        return
    start, end = -(-first // _PAGE_BYTES) * _PAGE_BYTES, (first + values.nbytes) // _PAGE_BYTES * _PAGE_BYTES
    if start < end:  # a hint, so its result is not checked
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _PAGE_OUT)


def _in_a_file(address: int) -> bool:
    """Whether an address is in a mapped file; False if the system does not say."""
    if not _MAPS.exists():
        return False
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        span, *_, path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return path.startswith("/")
    return False


def trim() -> None:
    """Let the C library return freed memory to the system, where it can."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


Places = slice | Tensor  # one run, or indices


class Prefix(NamedTuple):
    """What a forward reads from a prefix cache, before the rows' own slots. Letter: P the most of one request."""

    slots: Tensor  # `[B, P]` of the store of blocks; any slot after a request's last one
    num_common: int  # the first `num_common` of these P are the same for all requests: held once, they may be read once
    own: "Placement"  # the placement in the rows alone
    attention: SharedKind = "auto"  # whether attention over the common slots is computed once for all rows

    @property
    def num_slots(self) -> int:
        """P."""
        return self.slots.shape[1]


class Placement(NamedTuple):
    """One forward's place in a cache; made by `MemberKV.place`, the same for both kinds of cache."""

    counts: tuple[int, ...]  # `[B]` new tokens of each request, >= 1
    rows: Places  # read: a slice if they stand side by side, else `[B]` indices
    positions: Places  # of the new tokens in their texts: a slice if it is one run, else `[T]`
    written: tuple[int, slice] | Tensor  # (row, slots) if it is one run, else `[T]` indices into all slots of all rows
    num_slots: int  # S; slots 0 to S - 1 of the rows are read, after those of `prefix`, which are among the S
    mask: Tensor | None  # `[B, 1, Q, S]` bool, True where a token attends; None if every token attends to all S slots
    pad: Tensor | None  # `[B, Q]` index into T, requests padded with their own last token; None if all counts are equal
    unpad: Tensor | None  # `[T]` index of every token in B x Q; None as `pad`
    tree: bool = False  # slots do not give positions, only the mask does; such a forward is not compiled
    prefix: Prefix | None = None

    @property
    def longest(self) -> int:
        """Q."""
        return max(self.counts)

    def looks(self, device: torch.device) -> Tensor:
        """`mask`, all True where there is none."""
        if self.mask is not None:
            return self.mask
        return torch.ones((len(self.counts), 1, self.longest, self.num_slots), dtype=torch.bool, device=device)

    def padded(self, tokens: Tensor) -> Tensor:
        """`[B, Q, ...]` of what is `[T, ...]`."""
        if self.pad is None:
            return tokens.view(len(self.counts), -1, *tokens.shape[1:])
        return tokens[self.pad]

    def unpadded(self, padded: Tensor) -> Tensor:
        """`[T, ...]` of what is `[B, Q, ...]`."""
        flat = padded.reshape(-1, *padded.shape[2:])
        return flat if self.unpad is None else flat.index_select(0, self.unpad)


def runs(firsts: Sequence[int], counts: tuple[int, ...], device: torch.device) -> Tensor:
    """`[T]` whole numbers: `counts[i]` consecutive ones of each request, from its first on."""
    starts, lengths = np.array(firsts), np.array(counts)
    longest = max(counts)
    grid = starts[:, None] + np.arange(longest)
    flat = grid.ravel() if min(counts) == longest else grid[_holds_token(lengths, longest)]
    return torch.from_numpy(flat).to(device)


def padding(counts: tuple[int, ...], device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """`pad` and `unpad` of a placement."""
    longest = max(counts)
    if min(counts) == longest:
        return None, None
    lengths = np.array(counts)
    ends = lengths.cumsum()[:, None]
    pad = np.minimum(ends - lengths[:, None] + np.arange(longest), ends - 1)
    unpad = np.flatnonzero(_holds_token(lengths, longest))
    return torch.from_numpy(pad).to(device), torch.from_numpy(unpad).to(device)


def _holds_token(lengths: NDArray[np.int64], longest: int) -> NDArray[np.bool_]:
    """`[B, Q]` whether a place holds a token, not padding."""
    return np.arange(longest) < lengths[:, None]


def side_by_side(rows: list[int]) -> slice | None:
    """The slice of these rows, None if they have gaps or another order (a new request takes the first free row)."""
    first, end = rows[0], rows[0] + len(rows)
    return slice(first, end) if rows == list(range(first, end)) else None


# What a device without enough memory raises.
NO_MEMORY = (MemoryError, torch.OutOfMemoryError)
# Bytes of a line of the processor's cache. Torch aligns memory to one, which is fastest for attention; numpy begins 16
# bytes after one.
_ALIGNED = 64


def zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros: a masked slot must still hold finite numbers.

    On a CPU pages cost neither seconds nor memory until they are written (numpy requests zeroed memory).

    Raises:
        MemoryError: a CPU lacks the memory.
        torch.OutOfMemoryError: another device lacks it.
    """
    if device.type != "cpu" or not prod(size):
        return torch.zeros(size, dtype=dtype, device=device)
    num_bytes = prod(size) * dtype.itemsize
    as_bytes = np.zeros(num_bytes + _ALIGNED, dtype=np.uint8)  # numpy has no bfloat16
    first = -as_bytes.ctypes.data % _ALIGNED
    return torch.from_numpy(as_bytes)[first : first + num_bytes].view(dtype).view(size)


# Rows of slots grow by multiples of this, so that shapes repeat and growing (a copy) is rare.
SLOT_STEP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """What one token takes in a member's cache, which has the shapes L, H and D."""

    num_layers: int
    num_heads: int
    head_width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_slot(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.num_layers * self.num_heads * self.head_width * self.dtype.itemsize


class MemberKV(ABC):
    """One member's cache for all running requests; all methods but the properties mutate it, few of them copy data.

    `rows` are by request id; `num_rows` (R) have memory, with `capacity` (S) slots each.
    """

    def __init__(self, shape: KVShape) -> None:
        self.shape = shape
        self.rows: dict[str, int] = {}
        # Kept beside the tensor's shape, which takes ten times as long to read, several times per forward.
        self.num_rows = self.capacity = 0
        # Rows that a request has freed and none has taken since, and how many of their slots it may have written.
        self._left: dict[int, int] = {}
        self._kv = self._zeros(0, 0)

    # -- what is held

    @property
    def held_slots(self) -> int:
        """Slots with memory."""
        return self.num_rows * self.capacity

    @property
    def held_bytes(self) -> int:
        """Memory of all slots."""
        return self.held_slots * self.shape.bytes_per_slot

    @property
    def live_slots(self) -> int:
        """Slots whose token belongs to a request's text."""
        return sum(self.length(request_id) for request_id in self.rows)

    def length(self, request_id: str) -> int:
        """Tokens of the request that the cache holds; 0 for an unknown one."""
        row = self.rows.get(request_id)
        return self._base(request_id) + (0 if row is None else self._length(row))

    def _base(self, request_id: str) -> int:
        """Of a request's tokens, the first ones that are in shared blocks, before those in its row."""
        return 0

    @abstractmethod
    def _length(self, row: int) -> int:
        """Live tokens of a row."""

    @abstractmethod
    def live_slots_of(self, request_id: str) -> list[int]:
        """Slots of the request's tokens in the order of their positions; for checks."""

    # -- requests

    def free(self, request_id: str) -> None:
        """Forget a request; its row is taken by the next one."""
        row = self.rows.pop(request_id, None)
        if row is not None:
            self._left[row] = self._reach(row)
            self._clear(row)

    def roll_back(self, request_id: str, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens of a request; raises ValueError if it holds fewer."""
        held = self.length(request_id)
        if num_tokens == held:
            return
        if num_tokens > held:
            raise ValueError(f"num_tokens must be <= {held}, what the cache holds of {request_id}, got {num_tokens}")
        row, own = self.rows.get(request_id), num_tokens - self._base(request_id)
        if row is not None and max(0, own) < self._length(row):
            self._shorten(row, max(0, own))

    def keep_path(self, request_id: str, num_tokens: int, kept: Sequence[int]) -> None:
        """Keep of a request its first `num_tokens` tokens and, of those after them, these, by ascending index."""
        self._keep_path(self.rows[request_id], num_tokens - self._base(request_id), kept)

    @abstractmethod
    def _keep_path(self, row: int, num_tokens: int, kept: Sequence[int]) -> None:
        """As `keep_path`."""

    @abstractmethod
    def _shorten(self, row: int, num_tokens: int) -> None:
        """Called only if the row holds more tokens."""

    @abstractmethod
    def _reach(self, row: int) -> int:
        """How many of a row's slots may have been written since a request took it."""

    @abstractmethod
    def _clear(self, row: int) -> None:
        """No token of this row is live any more."""

    # -- forwards

    def reserve(self, request_ids: Sequence[str], counts: Sequence[int], further: Sequence[int] = ()) -> None:
        """Allocate the memory for a forward, and for later forwards of one token each.

        `request_ids` differ. `counts` are tokens of each in the first `place`, >= 1; `further` is how many more times
        each is placed with one token, >= 0, none at all if empty.

        Raises:
            MemoryError, torch.OutOfMemoryError: the device has not enough (`NO_MEMORY`).
        """
        rows, slots = self._needed(request_ids, counts, further)
        if (rows, slots) != (self.num_rows, self.capacity):
            self._resize(rows, slots)

    def extra_bytes(self, request_ids: Sequence[str], counts: Sequence[int], further: Sequence[int] = ()) -> int:
        """Memory that `reserve` would add."""
        rows, slots = self._needed(request_ids, counts, further)
        return (rows * slots - self.held_slots) * self.shape.bytes_per_slot

    def place(self, request_ids: Sequence[str], counts: Sequence[int]) -> Placement:
        """Append `counts[i]` >= 1 tokens to each request; grows where needed. The next forward must write them.

        `request_ids` differ, in ascending order of rows (see `in_order`); those without a row get one.
        """
        rows = [self.rows.get(request_id) for request_id in request_ids]
        if None in rows or self._slots_needed(rows, counts, ()) > self.capacity:
            self.reserve(request_ids, counts)
            for request_id, row in zip(request_ids, rows, strict=True):
                if row is None:
                    self.rows[request_id] = self._clean_row()
        return self._append([self.rows[request_id] for request_id in request_ids], tuple(counts))

    def in_order(self, request_ids: Sequence[str]) -> list[int]:
        """Indices that put requests into the order of their rows, new ones last."""
        if len(request_ids) == 1:
            return [0]
        rows = [self.rows.get(request_id, self.num_rows + len(self.rows)) for request_id in request_ids]
        return sorted(range(len(rows)), key=rows.__getitem__)

    def write(self, layer: int, placement: Placement, keys_values: Tensor) -> None:
        """Put `[T, 2, H, D]` keys and values of one layer where the placement says."""
        written = placement.written
        if isinstance(written, tuple):
            row, slots = written
            self._kv[layer, row, slots] = keys_values
        else:
            self._kv[layer].flatten(0, 1).index_copy_(0, written, keys_values)

    def read(self, layer: int, placement: Placement) -> tuple[Tensor, Tensor]:
        """Keys and values `[B, H, S, D]` of one layer, as views where the rows stand side by side."""
        keys, values = self._slots_read(layer, placement).permute(2, 0, 3, 1, 4).unbind(0)
        return keys, values

    def _slots_read(self, layer: int, placement: Placement) -> Tensor:
        """`[B, S, 2, H, D]` of one layer."""
        rows, kv = placement.rows, self._kv[layer, :, : placement.num_slots]
        return kv[rows] if isinstance(rows, slice) else kv.index_select(0, rows)

    def truncate(self) -> None:
        """Free the memory of what is not live: free rows, and slots beyond those of the longest text."""
        self._close_ranks()
        slots = -(-self._squeeze() // SLOT_STEP) * SLOT_STEP
        if (len(self.rows), slots) != (self.num_rows, self.capacity):
            self._resize(len(self.rows), min(slots, self.capacity))

    @abstractmethod
    def _squeeze(self) -> int:
        """Move live slots of every row together where they are apart; returns how many the longest text has."""

    def _append(self, rows: list[int], counts: tuple[int, ...]) -> Placement:
        """Called only with room for them."""
        if len(rows) == 1:
            return self._one(rows[0], counts)
        starts = [self._length(row) for row in rows]
        firsts = self._take(rows, counts)
        device = self.shape.device
        read = side_by_side(rows) or torch.from_numpy(np.array(rows)).to(device)
        positions = runs(starts, counts, device)
        pad, unpad = padding(counts, device)
        num_slots = max(map(add, firsts, counts))
        return Placement(
            counts=counts,
            rows=read,
            positions=positions,
            written=runs([row * self.capacity + slot for row, slot in zip(rows, firsts, strict=True)], counts, device),
            num_slots=num_slots,
            mask=self._looks(read, counts, positions, pad, num_slots),
            pad=pad,
            unpad=unpad,
        )

    def _one(self, row: int, counts: tuple[int, ...]) -> Placement:
        """A single request: everything is a run, nothing is copied."""
        start, (count,) = self._length(row), counts
        (first,) = self._take([row], counts)
        rows, positions, num_slots = slice(row, row + 1), slice(start, start + count), first + count
        return Placement(
            counts=counts,
            rows=rows,
            positions=positions,
            written=(row, slice(first, num_slots)),
            num_slots=num_slots,
            mask=self._looks(rows, counts, positions, None, num_slots),
            pad=None,
            unpad=None,
        )

    @abstractmethod
    def _take(self, rows: list[int], counts: tuple[int, ...]) -> list[int]:
        """Take slots for `counts[i]` tokens of each row; returns the first of each, the others come after it."""

    @abstractmethod
    def _looks(
        self, rows: Places, counts: tuple[int, ...], positions: Places, pad: Tensor | None, num_slots: int
    ) -> Tensor | None:
        """The mask over slots that were just taken; arguments as in `Placement`."""

    @abstractmethod
    def _slots_needed(self, rows: Sequence[int | None], counts: Sequence[int], further: Sequence[int]) -> int:
        """Slots of a row that `reserve` needs; a row is None for a request without one, `further` may be empty."""

    def _needed(self, request_ids: Sequence[str], counts: Sequence[int], further: Sequence[int]) -> tuple[int, int]:
        """(rows, slots) after `reserve`."""
        taken = [self.rows.get(request_id) for request_id in request_ids]
        rows = max(self.num_rows, len(self.rows) + taken.count(None))
        slots = self._slots_needed(taken, counts, further)
        return rows, self.capacity if slots <= self.capacity else -(-slots // SLOT_STEP) * SLOT_STEP

    def _clean_row(self) -> int:
        row = self._free_row()
        written = self._left.pop(row, 0)
        if written:
            # Masked slots are still multiplied by 0: a NaN that one request leaves there would break the next one.
            self._kv[:, row, :written] = 0.0
        return row

    def _free_row(self) -> int:
        return min(set(range(self.num_rows)).difference(self.rows.values()))

    def _zeros(self, rows: int, slots: int) -> Tensor:
        shape = self.shape
        size = (shape.num_layers, rows, slots, 2, shape.num_heads, shape.head_width)
        return zeros(size, shape.dtype, shape.device)

    def _resize(self, rows: int, slots: int) -> None:
        """Keeps what requests wrote in place, as far as it fits."""
        old, new = self._kv, self._zeros(rows, slots)
        for row in self.rows.values():
            reach = min(self._reach(row), self.capacity, slots)  # the rest is zero or belongs to no request
            new[:, row, :reach] = old[:, row, :reach]
        self._kv = new
        self.num_rows, self.capacity = rows, slots
        self._left.clear()

    def _close_ranks(self) -> None:
        """Move the last rows into free ones, so that the rows in use are the first."""
        for request_id in sorted(self.rows, key=self.rows.__getitem__, reverse=True):
            free, row = self._free_row() if len(self.rows) < self.num_rows else self.num_rows, self.rows[request_id]
            if free >= row:
                return
            self._left[row] = self._reach(row)
            covered = max(self._left[row], self._left.pop(free, 0))
            self._kv[:, free, :covered] = self._kv[:, row, :covered]
            self.rows[request_id] = free
            self._move(row, free)

    @abstractmethod
    def _move(self, row: int, to: int) -> None:
        """Move a row's state to another row."""


class MaskCache(MemberKV):
    """Append-only with holes; letters as in `MemberKV`.

    `dead_share` of the columns in use may be dead, in (0, 1] (checked by `Memory`).
    """

    def __init__(self, shape: KVShape, *, dead_share: float = 0.5) -> None:
        super().__init__(shape)
        self.num_truncations = 0
        self._dead_share = dead_share
        self._slots: list[list[int]] = []
        self._end = self._furthest = 0
        self._valid = self._causal = torch.zeros((0, 0), dtype=torch.bool, device=shape.device)

    @property
    def _longest(self) -> int:
        """Tokens of the longest text: the columns that must be kept."""
        return max((len(self._slots[row]) for row in self.rows.values()), default=0)

    def live_slots_of(self, request_id: str) -> list[int]:
        """Slots of the request's tokens in the order of their positions."""
        row = self.rows.get(request_id)
        return [] if row is None else list(self._slots[row])

    def _squeeze(self) -> int:
        for row in self.rows.values():
            slots = self._slots[row]
            count = len(slots)
            if count and slots[-1] >= count:
                live = torch.tensor(slots, device=self.shape.device)
                self._kv[:, row, :count] = self._kv[:, row].index_select(1, live)
                self._slots[row] = list(range(count))
                self._valid[row] = False
                self._valid[row, :count] = True
        self._end = self._longest
        self.num_truncations += 1
        return self._end

    def _length(self, row: int) -> int:
        return len(self._slots[row])

    def _shorten(self, row: int, num_tokens: int) -> None:
        slots = self._slots[row]
        # Slots ascend with positions, so all live ones from here on are dropped.
        self._valid[row, slots[num_tokens] :] = False
        del slots[num_tokens:]

    def _keep_path(self, row: int, num_tokens: int, kept: Sequence[int]) -> None:
        # Moves nothing: dropped tokens become holes.
        slots = self._slots[row]
        if num_tokens == len(slots):
            return
        live = [slots[num_tokens + index] for index in kept]
        self._valid[row, slots[num_tokens] :] = False
        self._valid[row, live] = True
        slots[num_tokens:] = live

    def _reach(self, row: int) -> int:
        # Truncating moves slots and does not clear the old ones.
        return self._furthest

    def _clear(self, row: int) -> None:
        self._slots[row] = []
        self._valid[row] = False
        if not self.rows:
            self._end = self._furthest = 0

    def _move(self, row: int, to: int) -> None:
        self._slots[to], self._slots[row] = self._slots[row], []
        self._valid[to] = self._valid[row]
        self._valid[row] = False

    def _resize(self, rows: int, slots: int) -> None:
        # Allocate everything before any change: if that fails, the cache is unchanged.
        kept_rows, kept_slots = min(rows, self._valid.shape[0]), min(slots, self._valid.shape[1])
        valid = zeros((rows, slots), torch.bool, self.shape.device)
        causal = zeros((slots, slots), torch.bool, self.shape.device).fill_(value=True).tril_()
        super()._resize(rows, slots)
        valid[:kept_rows, :kept_slots] = self._valid[:kept_rows, :kept_slots]
        self._valid, self._causal = valid, causal
        self._slots = [*self._slots[:rows], *([] for _ in range(rows - len(self._slots)))]

    def _slots_needed(self, rows: Sequence[int | None], counts: Sequence[int], further: Sequence[int]) -> int:
        # All rows take the same columns, so the longest of each forward counts.
        return self._end + max(counts) + max(further, default=0)

    def place(self, request_ids: Sequence[str], counts: Sequence[int]) -> Placement:
        """As in `MemberKV`; truncates first where too many slots are dead."""
        if self._end - self._longest > self._dead_share * self._end:
            self._squeeze()
        return super().place(request_ids, counts)

    def _take(self, rows: list[int], counts: tuple[int, ...]) -> list[int]:
        first, self._end = self._end, self._end + max(counts)
        self._furthest = max(self._furthest, self._end)
        for row, count in zip(rows, counts, strict=True):
            self._slots[row].extend(range(first, first + count))
        return [first] * len(rows)

    def _looks(
        self, rows: Places, counts: tuple[int, ...], positions: Places, pad: torch.Tensor | None, num_slots: int
    ) -> torch.Tensor:
        """Marks the new slots as valid."""
        device, end, longest = self.shape.device, num_slots, max(counts)
        first = end - longest
        if min(counts) == longest:
            self._valid[rows, first:end] = True
        else:
            live = torch.arange(longest, device=device) < torch.tensor(counts, device=device)[:, None]
            self._valid[rows, first:end] = live
        looks = self._valid[rows, None, :end]
        if longest > 1:
            # Padding attends to its request's slots; nothing attends to padding.
            looks = looks & self._causal[first:end, :end]
        return looks[:, None]


class SlotCache(MemberKV):
    """Slot == position. Letters as in `MemberKV`; Q new tokens of one request."""

    def __init__(self, shape: KVShape) -> None:
        super().__init__(shape)
        self._lengths: list[int] = []
        # The most that a row has held before it was rolled back.
        self._most: list[int] = []
        self._numbers = torch.arange(0, device=shape.device)

    def live_slots_of(self, request_id: str) -> list[int]:
        """Slots of the request's tokens in the order of their positions."""
        row = self.rows.get(request_id)
        return [] if row is None else list(range(self._lengths[row]))

    def fork(self, request_id: str, to: str, num_tokens: int) -> None:
        """Let `to`, a new request, begin as a copy of the first `num_tokens` >= 1 of a request."""
        self.place([to], [num_tokens])
        self._kv[:, self.rows[to], :num_tokens] = self._kv[:, self.rows[request_id], :num_tokens]

    def _squeeze(self) -> int:
        return max((self._lengths[row] for row in self.rows.values()), default=0)

    def _length(self, row: int) -> int:
        return self._lengths[row]

    def _shorten(self, row: int, num_tokens: int) -> None:
        self._most[row] = self._reach(row)
        self._lengths[row] = num_tokens

    def _keep_path(self, row: int, num_tokens: int, kept: Sequence[int]) -> None:
        # Moves kept tokens to the slots of their positions.
        end = num_tokens + len(kept)
        if list(kept) != list(range(len(kept))):
            slots = torch.tensor(kept, device=self.shape.device) + num_tokens
            self._kv[:, row, num_tokens:end] = self._kv[:, row].index_select(1, slots)
        self._shorten(row, end)

    def _reach(self, row: int) -> int:
        return max(self._most[row], self._lengths[row])

    def _clear(self, row: int) -> None:
        self._lengths[row] = self._most[row] = 0

    def _move(self, row: int, to: int) -> None:
        for known in (self._lengths, self._most):
            known[to], known[row] = known[row], 0

    def _resize(self, rows: int, slots: int) -> None:
        # Allocate everything before any change: if that fails, the cache is unchanged.
        numbers = torch.arange(slots, device=self.shape.device)
        super()._resize(rows, slots)
        self._numbers = numbers
        more = [0] * (rows - len(self._lengths))
        self._lengths, self._most = [*self._lengths[:rows], *more], [*self._most[:rows], *more]

    def _slots_needed(self, rows: Sequence[int | None], counts: Sequence[int], further: Sequence[int]) -> int:
        lengths, needed = self._lengths, 0
        for row, count, more in zip(rows, counts, further or repeat(0)):  # noqa: B905 - a strict zip is slower
            end = count + more if row is None else lengths[row] + count + more
            needed = max(needed, end)
        return needed

    def _take(self, rows: list[int], counts: tuple[int, ...]) -> list[int]:
        firsts = [self._lengths[row] for row in rows]
        for row, first, count in zip(rows, firsts, counts, strict=True):
            self._lengths[row] = first + count
        return firsts

    def _looks(
        self, rows: Places, counts: tuple[int, ...], positions: Places, pad: Tensor | None, num_slots: int
    ) -> Tensor | None:
        if isinstance(positions, slice):
            if counts[0] == 1:
                return None
            seen = torch.ones((1, 1, counts[0], num_slots), dtype=torch.bool, device=self.shape.device)
            return seen.tril_(positions.start)
        padded = positions if pad is None else positions[pad]
        return padded.view(len(counts), 1, -1, 1) >= self._numbers[:num_slots]


Flags = NDArray[np.bool_]


class TreeRow(NamedTuple):
    """One request's part in a forward."""

    request_id: str
    positions: Sequence[int]  # of all its new tokens in their texts
    sees: Flags  # `[N, M]` which nodes of the tree each of the last N new tokens attends to


def on_trees(placement: Placement, cache: MemberKV, rows: Sequence[TreeRow]) -> Placement:
    """Turn a placement just made for runs of tokens into one for trees; `rows` are in its order."""
    device = cache.shape.device
    behind = 0 if placement.prefix is None else placement.prefix.num_slots
    allowed = np.ones((len(rows), placement.longest, placement.num_slots), dtype=np.bool_)
    for number, (row, count) in enumerate(zip(rows, placement.counts, strict=True)):
        num_new, num_nodes = row.sees.shape
        nodes = allowed[number, count - num_new : count]
        nodes[:, [behind + slot for slot in cache.live_slots_of(row.request_id)[-num_nodes:]]] = row.sees
    positions = np.concatenate([np.asarray(row.positions, dtype=np.int64) for row in rows])
    # Parents come before their children, so nodes see a subset of what a run of tokens would.
    mask = placement.looks(device) & torch.from_numpy(allowed).to(device)[:, None]
    return placement._replace(positions=torch.from_numpy(positions).to(device), mask=mask, tree=True)


def ancestry(parents: Sequence[int]) -> Flags:
    """`[M, M]` which nodes are each one's ancestors or itself, by the index of its parent (-1 below the root)."""
    sees = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] |= sees[parent]
    return sees


def depths(parents: Sequence[int]) -> list[int]:
    """`[M]` tokens from the root to each node."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found
