"""Captures functions when they are first needed, as far as there is memory, and says where it did not."""

import sys
from collections.abc import Callable, Hashable
from typing import Protocol
from weakref import ref

from torch import Tensor

from ...traces.meta import Sampling
from ..kv.member_kv import KVShape, MemberKV
from ..kv.placement import Placement
from .buckets import Bucket
from .capture import Capture, Run
from .static_cache import StaticSlotCache
from .static_inputs import StaticInputs
from .static_memory import Captured, StaticMemory

# Most that a capture may take of what a device has free, and all of a member's of a limit that is set for caches.
_MOST_OF_FREE, _MOST_OF_LIMIT = 0.5, 0.1


def shaped_by(sampling: Sampling) -> Hashable:
    """What of a sampling a captured function depends on: noise is among its inputs, and so no seed is."""
    return sampling.mode, sampling.temperature, sampling.top_k, sampling.top_p


class Forward(Protocol):
    """What is captured: a forward that neither waits for the device nor chooses shapes by what is on it."""

    @property
    def kv_shape(self) -> KVShape:
        """What the cache must hold of one token."""

    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        """`[N, V]` logits after the kept tokens."""


class GraphStore:
    """The static memories of one member, and what is captured over each.

    Args:
        forward: runs the model on what is in the buffers.
        capture: makes it repeatable.
        vocab_size: of its logits.
        context_tokens: longest text, >= 1.

    Attributes:
        forward, vocab_size: as given.
        reasons: why something was not captured, each once; it is called instead.
    """

    def __init__(self, forward: Forward, capture: Capture, *, vocab_size: int, context_tokens: int) -> None:
        self.forward = forward
        self.vocab_size = vocab_size
        self.reasons: list[str] = []
        self._capture = capture
        self._context_tokens = context_tokens
        self._memories: list[StaticMemory] = []

    def new_cache(self, limit_bytes: int | None) -> StaticSlotCache:
        """A cache over a memory that nobody has, with what was captured over it.

        Args:
            limit_bytes: of all caches on the device together; None for whatever it has.
        """
        free = [memory for memory in self._memories if memory.free]
        memory = free[0] if free else StaticMemory()
        # A second one is kept while it is used only.
        self._memories = [one for one in self._memories if not one.free or one is memory]
        if not free:
            self._memories.append(memory)
        cache = StaticSlotCache(
            self.forward.kv_shape, memory, context_tokens=self._context_tokens, roomy=limit_bytes is None
        )
        memory.owner = ref(cache)
        memory.limit_bytes = limit_bytes
        return cache

    def memory_of(self, cache: MemberKV) -> StaticMemory | None:
        """The static memory that a cache has; None for a cache of another kind."""
        return next((memory for memory in self._memories if memory.owner is not None and memory.owner() is cache), None)

    def captured(
        self,
        memory: StaticMemory,
        what: Hashable,
        bucket: Bucket,
        make: Callable[[StaticInputs], Run],
        *,
        num_logits: int,
    ) -> Captured:
        """The captured function of this kind and bucket, captured now if it was not.

        Args:
            memory: it runs over.
            what: it does; the key, with the bucket. What differs from call to call is an input and no part of it.
            bucket: of its inputs.
            make: the function, over the buffers it is given.
            num_logits: rows of `[V]` that it gives, for its need of memory.
        """
        found = memory.captured.get((what, bucket))
        if found is None:
            inputs = StaticInputs(bucket, memory.cache)
            replay = run = make(inputs)
            before = self._capture.used_bytes()
            # What is in the buffers now is no forward of anybody: it writes to the slots that are nobody's.
            if self._has_room(memory, bucket, num_logits):
                try:
                    replay = self._capture.capture(run)
                except RuntimeError as error:
                    self._note(f"{bucket} cannot be captured: {str(error).splitlines()[0]}")
            found = Captured(inputs=inputs, replay=replay, num_bytes=self._capture.used_bytes() - before)
            memory.captured[what, bucket] = found
        return found

    def _has_room(self, memory: StaticMemory, bucket: Bucket, num_logits: int) -> bool:
        free = self._capture.free_bytes()
        if free is None:
            return True
        # Logits, their float32 copy and what is sorted or added to them.
        needed = num_logits * self.vocab_size * 4 * 4
        if needed > _MOST_OF_FREE * free:
            self._note(f"{bucket} are not captured: that takes {needed:,} bytes, and the device has {free:,} free")
            return False
        used, limit = memory.captured_bytes, memory.limit_bytes
        if limit is not None and used + needed > _MOST_OF_LIMIT * limit:
            self._note(f"{bucket} are not captured: that makes {used + needed:,} bytes, and the KV limit is {limit:,}")
            return False
        return True

    def _note(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)
            sys.stderr.write(f"paceline: forwards of {reason}; they are called one by one\n")
