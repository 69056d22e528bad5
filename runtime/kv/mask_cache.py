"""The append-only cache with a logical validity mask (SpecRouter, arXiv:2505.07680): rolling back clears bits.

All rows take new slots at the same columns, as stock caches do, so requests of a batch that feed fewer tokens leave
holes; so do tokens that were rolled back, and rows that sat a forward out. Holes are masked. When more than a stated
share of the columns is dead, live slots are moved together (physical truncation).

As many columns are dead as truncating would win: those in use beyond the tokens of the longest text. What shorter texts
leave unused beside it is not counted, since moving slots does not help there.
"""

from collections.abc import Sequence

import torch

from .member_kv import KVShape, MemberKV
from .placement import Placement, Places
from .zeros import zeros


class MaskCache(MemberKV):
    """Append-only with holes. Letters as in `member_kv`; B requests of a forward, Q the most tokens of one.

    Args:
        shape: of one slot.
        dead_share: share of the columns in use that may be dead, in (0, 1] (checked by `Memory`).
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
        """Tokens of the longest text: the columns that must stay."""
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
        # Slots ascend with positions, so all live ones from here on are those that go.
        self._valid[row, slots[num_tokens] :] = False
        del slots[num_tokens:]

    def keep_path(self, request_id: str, num_tokens: int, kept: Sequence[int]) -> None:
        """See `MemberKV`; moves nothing: what is not kept becomes a hole."""
        row = self.rows[request_id]
        slots = self._slots[row]
        if num_tokens == len(slots):
            return
        live = [slots[num_tokens + index] for index in kept]
        self._valid[row, slots[num_tokens] :] = False
        self._valid[row, live] = True
        slots[num_tokens:] = live

    def _reach(self, row: int) -> int:
        # Truncating moves slots and leaves the old ones as they were.
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
        # All memory before anything is changed: where there is none, the cache stays as it is.
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
            # Padding looks at what its request holds; nobody looks at padding.
            looks = looks & self._causal[first:end, :end]
        return looks[:, None]
