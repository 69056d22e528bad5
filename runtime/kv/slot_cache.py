"""The cache whose slots are positions: rolling a request back is one integer.

Slot s of a row holds position s of its text, so a token looks at the slots up to its own. Shapes depend on the batch
and on the capacity only, not on what was rolled back.
"""

from collections.abc import Sequence
from itertools import repeat

import torch
from torch import Tensor

from .member_kv import KVShape, MemberKV
from .placement import Places


class SlotCache(MemberKV):
    """Slot == position. Letters as in `member_kv`; Q new tokens of one request."""

    def __init__(self, shape: KVShape) -> None:
        super().__init__(shape)
        self._lengths: list[int] = []
        # The most that a row has held before it was rolled back.
        self._most: list[int] = []
        self._numbers = torch.arange(0, device=shape.device)

    def live_slots_of(self, request_id: str) -> list[int]:
        """Slots of the request's tokens in the order of their positions."""
        return list(range(self.length(request_id)))

    def advance(self, request_id: str, num_tokens: int) -> None:
        """So many more tokens of a request are held: whoever says so has written them to the slots that follow."""
        self._lengths[self.rows[request_id]] += num_tokens

    def _squeeze(self) -> int:
        return max((self._lengths[row] for row in self.rows.values()), default=0)

    def _length(self, row: int) -> int:
        return self._lengths[row]

    def _shorten(self, row: int, num_tokens: int) -> None:
        self._most[row] = self._reach(row)
        self._lengths[row] = num_tokens

    def keep_path(self, request_id: str, num_tokens: int, kept: Sequence[int]) -> None:
        """See `MemberKV`; moves what is kept to the slots of its positions."""
        row, end = self.rows[request_id], num_tokens + len(kept)
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
        # All memory before anything is changed: where there is none, the cache stays as it is.
        numbers = torch.arange(slots, device=self.shape.device)
        super()._resize(rows, slots)
        self._numbers = numbers
        more = [0] * (rows - len(self._lengths))
        self._lengths, self._most = [*self._lengths[:rows], *more], [*self._most[:rows], *more]

    def _slots_needed(self, rows: Sequence[int | None], counts: Sequence[int], further: Sequence[int]) -> int:
        lengths, needed = self._lengths, 0
        for row, count, more in zip(rows, counts, further or repeat(0)):  # noqa: B905 - to be strict costs more
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
