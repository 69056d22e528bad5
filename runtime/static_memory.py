"""Memory that captured functions refer to: inputs, caches and their sizes.

Which shapes are captured: a forward is padded to the next one.

Letters: B requests, R rows, Q tokens of a row, S slots.

How a function over static buffers is run again and again: as a CUDA graph, or by calling it.

What a captured forward reads: token ids, positions and slots in buffers that stay where they are.

The mask is made of the positions by the captured forward itself. So rolling a request back, which changes an integer,
changes what is written here the next time, and nothing that was captured.

Letters: B requests, T new tokens of all of them, R rows and Q tokens of a bucket, S slots.

Keys and values in one place, and what was captured over them.

It outlives the cache that uses it: the next one takes it over with everything captured.

A slot cache whose memory hardly ever moves: it grows by doubling, and the next cache takes it over.

The last step of slots of every row is nobody's: what a padded forward writes for no request goes there. It is not even
read, since a masked slot is multiplied by 0, and what broken weights leave there may be NaN.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from weakref import ReferenceType

import torch
from torch import Tensor

from ..base.errors import ArgumentError
from .caches import SLOT_STEP, KVShape, MemberKV, Placement, SlotCache

# Longer feeds read prompts: there the arithmetic takes the time, and padding would add to it.
MOST_ROW_TOKENS = 16
MOST_TOKENS = 1024


class Bucket(NamedTuple):
    """A shape of forwards.

    Attributes:
        rows: R, the first so many rows of the cache.
        tokens: Q of each.
        slots: S that each token may look at.
    """

    rows: int
    tokens: int
    slots: int


def bucket_of(placement: Placement, cache: MemberKV, *, further: int = 0) -> Bucket | None:
    """The smallest bucket that holds a forward; None for one that is not captured.

    Rows, tokens and slots are powers of two, but no more than the cache has; its last step of slots is nobody's.

    Args:
        placement: of the forward.
        cache: where it was placed.
        further: tokens that each row may come to hold beyond those, in the same bucket.
    """
    if placement.tree:
        return None
    rows = placement.rows
    # Rows that do not stand side by side are known to the device only; asking it would be a wait.
    needed = rows.stop if isinstance(rows, slice) else cache.num_rows
    bucket = Bucket(
        rows=min(power_of_two(needed), cache.num_rows),
        tokens=power_of_two(placement.longest),
        slots=min(max(SLOT_STEP, power_of_two(placement.num_slots + further)), cache.capacity - SLOT_STEP),
    )
    fits = bucket.tokens <= MOST_ROW_TOKENS and bucket.rows * bucket.tokens <= MOST_TOKENS
    return bucket if fits else None


def power_of_two(count: int) -> int:
    """The smallest that is at least `count` >= 1."""
    return 1 << (count - 1).bit_length()


Run = Callable[[], tuple[Tensor, ...]]

# Calls before a capture: libraries set up their workspaces and choose kernels in the first ones.
_WARM_UPS = 2


class Capture(Protocol):
    """Makes a function repeatable that reads and writes what stays where it is, and never waits for the device."""

    def capture(self, run: Run) -> Run:
        """A function that does what `run` does on what is then in the same buffers.

        Its results lie in the same place at every call, and may be overwritten by any other captured function.

        Raises:
            RuntimeError: `run` cannot be captured; it can be called as it is.
        """

    def free_bytes(self) -> int | None:
        """Memory that captures may still take; None where they take none."""

    def used_bytes(self) -> int:
        """Memory that captures took so far, those that are gone among them."""


class CalledEachTime:
    """No capture: the function itself. What tests run where there is no GPU."""

    def capture(self, run: Run) -> Run:
        """`run`."""
        return run

    def free_bytes(self) -> int | None:
        """None: nothing is taken."""
        return None

    def used_bytes(self) -> int:
        """0."""
        return 0


class CudaGraphs:
    """CUDA graphs that share one private pool of memory, so that only the largest one's temporaries count.

    Graphs that share a pool must not run at the same time: all of them are replayed on the current stream.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._used_bytes = 0

    def capture(self, run: Run) -> Run:
        """Warm up on a side stream, then capture there."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    run()
            current.wait_stream(self._stream)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # as the capture does, too, which must not count as memory that it gave back
            before = torch.cuda.memory_reserved()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                results = run()
            self._used_bytes += max(0, torch.cuda.memory_reserved() - before)

        def replay() -> tuple[Tensor, ...]:
            graph.replay()
            return results

        return replay

    def free_bytes(self) -> int | None:
        """What the driver has left, and what torch holds without using it."""
        free, _ = torch.cuda.mem_get_info(self._device)
        unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(free + max(0, unused))

    def used_bytes(self) -> int:
        """By which captures made torch's memory grow; what they gave back to the pool is used by later ones."""
        return self._used_bytes


def capture_on(device: torch.device) -> Capture:
    """How functions are captured on a device; raises ArgumentError where there are no CUDA graphs."""
    if device.type != "cuda":
        raise ArgumentError(f"`forward` graphs needs models on a CUDA device, got one on {device.type}")
    return CudaGraphs(device)


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
