"""Keys and values in one place, and what was captured over them.

It outlives the cache that uses it: the next one takes it over with everything captured.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from weakref import ReferenceType

from torch import Tensor

from ..kv.slot_cache import SlotCache
from .capture import Run
from .static_inputs import StaticInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A function that was captured, and the buffers it reads.

    Attributes:
        inputs: filled before each replay.
        replay: does it again on what is in them.
        num_bytes: that the capture took; 0 where it is called instead.
    """

    inputs: StaticInputs
    replay: Run
    num_bytes: int


class StaticMemory:
    """One memory of keys and values. Mutated by the cache that has it and by whoever captures.

    Attributes:
        kv: as `MemberKV` holds it; None before anybody needed it.
        captured: by what it does and its bucket; emptied when `kv` is replaced.
        owner: the cache that has it; its referent is gone once the memory may be lent again.
        limit_bytes: of all caches beside that one, and of what is captured; None without a limit.
    """

    def __init__(self) -> None:
        self.kv: Tensor | None = None
        self.captured: dict[Hashable, Captured] = {}
        self.owner: ReferenceType[SlotCache] | None = None
        self.limit_bytes: int | None = None

    @property
    def free(self) -> bool:
        """Whether no cache has it."""
        return self.owner is None or self.owner() is None

    @property
    def num_rows(self) -> int:
        """Rows there are."""
        return 0 if self.kv is None else self.kv.shape[1]

    @property
    def num_slots(self) -> int:
        """Slots of each row."""
        return 0 if self.kv is None else self.kv.shape[2]

    @property
    def captured_bytes(self) -> int:
        """Of everything that is captured."""
        return sum(captured.num_bytes for captured in self.captured.values())

    def cache(self) -> SlotCache:
        """The cache that has it now."""
        cache = None if self.owner is None else self.owner()
        assert cache is not None
        return cache

    def take(self, rows: int, slots: int, make: Callable[[], Tensor]) -> Tensor:
        """Zeros of this size: what is there if it fits exactly and nobody used it, else what `make` makes."""
        kv = self.kv
        if kv is None or (self.num_rows, self.num_slots) != (rows, slots):
            self.release()
            kv = self.kv = make()
            return kv
        return kv.zero_()

    def release(self) -> None:
        """Give the memory back, with what was captured over it."""
        self.captured.clear()
        self.kv = None
