"""The cache whose slots are positions: rolling a request back is one integer.

Slot s of a row holds position s of its text, so a token looks at the slots up to its own. Shapes depend on the batch
and on the capacity only, not on what was rolled back.
"""

from collections.abc import Sequence
from operator import add

import torch
from torch import Tensor

from .member_kv import KVShape, MemberKV
from .placement import Placement, padding, side_by_side


class SlotCache(MemberKV):
    """Slot == position. Letters as in `member_kv`; Q new tokens of one request."""

    def __init__(self, shape: KVShape) -> None:
        super().__init__(shape)
        self._lengths: list[int] = []
        self._numbers = torch.arange(0, device=shape.device)

    def live_slots_of(self, request_id: str) -> list[int]:
        """Slots of the request's tokens in the order of their positions."""
        return list(range(self.length(request_id)))

    def _squeeze(self) -> int:
        return max((self._lengths[row] for row in self.rows.values()), default=0)

    def _length(self, row: int) -> int:
        return self._lengths[row]

    def _shorten(self, row: int, num_tokens: int) -> None:
        self._lengths[row] = num_tokens

    def _clear(self, row: int) -> None:
        self._lengths[row] = 0

    def _move(self, row: int, to: int) -> None:
        self._lengths[to], self._lengths[row] = self._lengths[row], 0

    def _resize(self, rows: int, slots: int) -> None:
        super()._resize(rows, slots)
        self._lengths = [*self._lengths[:rows], *([0] * (rows - len(self._lengths)))]
        self._numbers = torch.arange(slots, device=self.shape.device)

    def _slots_needed(self, request_ids: Sequence[str], counts: Sequence[int], further: Sequence[int]) -> int:
        ends = [self.length(request_id) + count for request_id, count in zip(request_ids, counts, strict=True)]
        return max(map(add, ends, further) if further else ends)

    def _append(self, rows: list[int], counts: tuple[int, ...]) -> Placement:
        if len(rows) == 1:
            return self._one(rows[0], counts)
        starts = [self._lengths[row] for row in rows]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        for row, end in zip(rows, ends, strict=True):
            self._lengths[row] = end
        return self._many(rows, starts, ends, counts)

    def _one(self, row: int, counts: tuple[int, ...]) -> Placement:
        """A single request: everything is a run, nothing is copied."""
        start = self._lengths[row]
        self._lengths[row] = end = start + counts[0]
        positions = slice(start, end)
        return Placement(
            counts=counts,
            rows=slice(row, row + 1),
            positions=positions,
            written=(row, positions),
            num_slots=end,
            mask=None if end - start == 1 else (self._numbers[:end] <= self._numbers[start:end, None])[None, None],
            pad=None,
            unpad=None,
        )

    def _many(self, rows: list[int], starts: list[int], ends: list[int], counts: tuple[int, ...]) -> Placement:
        device = self.shape.device
        at: list[int] = []
        slots: list[int] = []
        for row, start, end in zip(rows, starts, ends, strict=True):
            at.extend(range(start, end))
            slots.extend(range(row * self.capacity + start, row * self.capacity + end))
        positions = torch.tensor(at, device=device)
        pad, unpad = padding(counts, device)
        padded: Tensor = positions.view(len(rows), -1) if pad is None else positions[pad]
        num_slots = max(ends)
        return Placement(
            counts=counts,
            rows=side_by_side(rows) or torch.tensor(rows, device=device),
            positions=positions,
            written=torch.tensor(slots, device=device),
            num_slots=num_slots,
            mask=(self._numbers[:num_slots] <= padded[..., None])[:, None],
            pad=pad,
            unpad=unpad,
        )
