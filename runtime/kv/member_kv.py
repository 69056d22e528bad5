"""What both kinds of cache share: memory for rows of slots, one row per request.

Letters: L layers, R rows, S slots of a row, H key and value heads, D head width, T new tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

import numpy as np
import torch
from torch import Tensor

from .placement import Placement, Places, padding, runs, side_by_side
from .zeros import zeros

# Rows of slots grow by multiples of this, so that shapes repeat and growing (a copy) is rare.
SLOT_STEP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """What one token takes in a member's cache.

    Attributes:
        num_layers, num_heads, head_width: L, H and D.
        dtype, device: of keys and values.
    """

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
    """One member's cache for all running requests; all methods but the properties mutate it, few of them move data.

    Attributes:
        shape: of one slot.
        rows: by request id.
        num_rows: R, rows there is memory for.
        capacity: S, slots of each row.
    """

    def __init__(self, shape: KVShape) -> None:
        self.shape = shape
        self.rows: dict[str, int] = {}
        # Beside the tensor's own shape, which takes ten times as long to read; every forward asks several times.
        self.num_rows = self.capacity = 0
        # Rows that a request left and none has taken since, and how many of their slots may hold what it wrote.
        self._left: dict[int, int] = {}
        self._kv = self._zeros(0, 0)

    # -- what is held

    @property
    def held_slots(self) -> int:
        """Slots there is memory for."""
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
        """Tokens of the request that the cache holds; 0 for one it does not know."""
        row = self.rows.get(request_id)
        return 0 if row is None else self._length(row)

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
        self._shorten(self.rows[request_id], num_tokens)

    @abstractmethod
    def keep_path(self, request_id: str, num_tokens: int, kept: Sequence[int]) -> None:
        """Keep of a request its first `num_tokens` tokens and, of those after them, these, by ascending index."""

    @abstractmethod
    def _shorten(self, row: int, num_tokens: int) -> None:
        """Only the first tokens of this row are live; it holds more."""

    @abstractmethod
    def _reach(self, row: int) -> int:
        """How many of a row's slots may have been written since a request took it."""

    @abstractmethod
    def _clear(self, row: int) -> None:
        """No token of this row is live any more."""

    # -- forwards

    def reserve(self, request_ids: Sequence[str], counts: Sequence[int], further: Sequence[int] = ()) -> None:
        """Get the memory that a forward needs, and those of one token each after it.

        Args:
            request_ids: different.
            counts: tokens of each request in the first `place`, >= 1.
            further: how many more times each is placed with one token, >= 0; none at all if empty.

        Raises:
            MemoryError, torch.OutOfMemoryError: the device has none (`zeros.NO_MEMORY`).
        """
        rows, slots = self._needed(request_ids, counts, further)
        if (rows, slots) != (self.num_rows, self.capacity):
            self._resize(rows, slots)

    def extra_bytes(self, request_ids: Sequence[str], counts: Sequence[int], further: Sequence[int] = ()) -> int:
        """Memory that `reserve` would add."""
        rows, slots = self._needed(request_ids, counts, further)
        return (rows * slots - self.held_slots) * self.shape.bytes_per_slot

    def place(self, request_ids: Sequence[str], counts: Sequence[int]) -> Placement:
        """Append `counts[i]` tokens to each request; grows where needed. The next forward must write them.

        Args:
            request_ids: different; those without a row get one. In ascending order of rows (see `in_order`).
            counts: >= 1.
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
        """Give back the memory of what is not live: free rows, and slots beyond those of the longest text."""
        self._close_ranks()
        slots = -(-self._squeeze() // SLOT_STEP) * SLOT_STEP
        if (len(self.rows), slots) != (self.num_rows, self.capacity):
            self._resize(len(self.rows), min(slots, self.capacity))

    @abstractmethod
    def _squeeze(self) -> int:
        """Move live slots of every row together where they are apart; returns how many the longest text has."""

    def _append(self, rows: list[int], counts: tuple[int, ...]) -> Placement:
        """Take slots for new tokens; there is room for them."""
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
        """The mask of slots that were just taken; arguments as in `Placement`."""

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
        """A row for a new request."""
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
        """Another amount of memory; what requests wrote stays where it is, as far as it fits."""
        old, new = self._kv, self._zeros(rows, slots)
        for row in self.rows.values():
            reach = min(self._reach(row), self.capacity, slots)  # the rest is zero, or of nobody
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
        """What is known of a row is now known of another one."""
