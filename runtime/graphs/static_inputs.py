"""What a captured forward reads: token ids, positions and slots in buffers that stay where they are.

The mask is made of the positions by the captured forward itself. So rolling a request back, which changes an integer,
changes what is written here the next time, and nothing that was captured.

Letters: B requests, T new tokens of all of them, R rows and Q tokens of a bucket, S slots.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..kv.member_kv import MemberKV
from ..kv.placement import Placement
from .buckets import Bucket

_IDS, _POSITIONS, _WRITTEN = range(3)


class StaticInputs:
    """Buffers of one bucket over one memory.

    Args:
        bucket: R, Q and S.
        cache: says which cache has the memory; its memory must not move while this is used.

    Attributes:
        bucket, cache: as given.
        extra: further buffers by name, of whoever made this.
    """

    def __init__(self, bucket: Bucket, cache: Callable[[], MemberKV]) -> None:
        self.bucket = bucket
        self.cache = cache
        self.extra: dict[str, Tensor] = {}
        self._device = cache().shape.device
        self._capacity = cache().capacity
        firsts = torch.arange(bucket.rows, device=self._device) * self._capacity
        # One of the slots of a row that are nobody's.
        self.scratch = firsts + self._capacity - 1
        # A token that is none: id 0 at position 0, written where nobody looks.
        self._nothing = torch.zeros((3, bucket.rows * bucket.tokens), dtype=torch.long, device=self._device)
        self._nothing[_WRITTEN] = self.scratch.repeat_interleave(bucket.tokens)
        self._packed = self._nothing.clone()
        self._firsts = firsts
        self._slots = torch.arange(bucket.slots, device=self._device)

    @property
    def ids(self) -> Tensor:
        """`[R Q]` token ids, row after row."""
        return self._packed[_IDS]

    @property
    def positions(self) -> Tensor:
        """`[R Q]` of the tokens in their texts."""
        return self._packed[_POSITIONS]

    @property
    def addresses(self) -> tuple[int, ...]:
        """Of all buffers; for checks."""
        return tuple(tensor.data_ptr() for tensor in (self._packed, *self.extra.values()))

    def fill(self, ids: Tensor, placement: Placement) -> Tensor:
        """Put a forward's tokens in place, and nothing elsewhere.

        Args:
            ids: `[T]` on the device.
            placement: of the forward, in this bucket.

        Returns:
            `[T]` where each token stands among the R Q.
        """
        at = self._at(placement)
        self._packed.copy_(self._nothing)
        positions, written = self._positions(placement), self._written(placement)
        self._packed.index_copy_(1, at, torch.stack([ids, positions, written]))
        return at

    def first(self) -> Placement:
        """Where the tokens in the buffers go; to be called where it is captured, as the mask is made of them."""
        return self._placement(self.positions, self._packed[_WRITTEN], self.bucket.tokens)

    def next_one(self, positions: Tensor, going: Tensor) -> Placement:
        """Where one more token of each row goes.

        Args:
            positions: `[R]` of the tokens in their texts.
            going: `[R]` bool; the others are written where nobody looks.
        """
        written = torch.where(going, self._firsts + positions, self.scratch)
        return self._placement(positions, written, 1)

    def _placement(self, positions: Tensor, written: Tensor, tokens: int) -> Placement:
        rows = self.bucket.rows
        return Placement(
            counts=(tokens,) * rows,
            rows=slice(0, rows),
            positions=positions,
            written=written,
            num_slots=self.bucket.slots,
            mask=self._slots <= positions.view(rows, 1, tokens, 1),
            pad=None,
            unpad=None,
        )

    def _at(self, placement: Placement) -> Tensor:
        columns = torch.arange(placement.longest, device=self._device)
        rows = placement.rows
        if isinstance(rows, slice):
            rows = torch.arange(rows.start, rows.stop, device=self._device)
        return placement.unpadded(rows[:, None] * self.bucket.tokens + columns)

    def _positions(self, placement: Placement) -> Tensor:
        positions = placement.positions
        if isinstance(positions, slice):
            return torch.arange(positions.start, positions.stop, device=self._device)
        return positions

    def _written(self, placement: Placement) -> Tensor:
        written = placement.written
        if isinstance(written, tuple):
            row, slots = written
            first = row * self._capacity
            return torch.arange(first + slots.start, first + slots.stop, device=self._device)
        return written
