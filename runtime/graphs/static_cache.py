"""A slot cache whose memory hardly ever moves: it grows by doubling, and the next cache takes it over.

The last step of slots of every row is nobody's: what a padded forward writes for no request goes there. It is not even
read, since a masked slot is multiplied by 0, and what broken weights leave there may be NaN.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kv.member_kv import SLOT_STEP, KVShape
from ..kv.slot_cache import SlotCache
from .buckets import power_of_two
from .static_memory import StaticMemory


class StaticSlotCache(SlotCache):
    """Slot == position, in a memory that captured functions may refer to.

    Args:
        shape: of one slot.
        memory: that nobody else has.
        context_tokens: longest text, >= 1.
        roomy: whether to take twice the memory when there is too little; False takes what is needed, as a cache
            under a limit should, and moves (so that everything is captured anew) at every step.
    """

    def __init__(self, shape: KVShape, memory: StaticMemory, *, context_tokens: int, roomy: bool) -> None:
        self._memory = memory
        self._most_slots = -(-context_tokens // SLOT_STEP) * SLOT_STEP
        self._roomy = roomy
        super().__init__(shape)

    @property
    def held_bytes(self) -> int:
        """Memory of all slots, and of what is captured over them."""
        return super().held_bytes + self._memory.captured_bytes

    def _squeeze(self) -> int:
        return super()._squeeze() + SLOT_STEP

    def _reach(self, row: int) -> int:
        # What was left in a row's last step is nobody's, and must not be moved to where somebody looks.
        return min(super()._reach(row), self.capacity - SLOT_STEP)

    def _slots_needed(self, rows: Sequence[int | None], counts: Sequence[int], further: Sequence[int]) -> int:
        return super()._slots_needed(rows, counts, further) + SLOT_STEP

    def _needed(self, request_ids: Sequence[str], counts: Sequence[int], further: Sequence[int]) -> tuple[int, int]:
        rows, slots = super()._needed(request_ids, counts, further)
        if not self._roomy or (rows, slots) == (self.num_rows, self.capacity):
            return rows, slots
        if not self.held_slots:
            rows, slots = max(rows, self._memory.num_rows), max(slots, self._memory.num_slots)
        if rows > max(self.num_rows, self._memory.num_rows):
            rows = power_of_two(rows)
        if slots > max(self.capacity, self._memory.num_slots):
            slots = max(slots, min(power_of_two(slots - SLOT_STEP), self._most_slots) + SLOT_STEP)
        return rows, slots

    def _zeros(self, rows: int, slots: int) -> Tensor:
        if not rows * slots:
            return super()._zeros(rows, slots)
        # Made in inference mode, the memory could not be changed outside it, where the next cache may be.
        with torch.inference_mode(mode=False):
            return self._memory.take(rows, slots, lambda: super(StaticSlotCache, self)._zeros(rows, slots))

    def _resize(self, rows: int, slots: int) -> None:
        if not rows * slots:
            self._memory.release()
        super()._resize(rows, slots)
