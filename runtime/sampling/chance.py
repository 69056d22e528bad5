"""The chance in rejection sampling: one stream of uniform numbers per request, or what a test puts in its place.

Letters: V vocabulary.
"""

import hashlib
from typing import Protocol

import numpy as np
from torch import Tensor


class Chance(Protocol):
    """Answers what was left to chance; one per request, asked in the order of its steps."""

    def accepts(self, prob: float) -> bool:
        """True with probability `prob`, 0 to 1; always at 1, never at 0."""
        ...

    def draw(self, probs: Tensor) -> int:
        """A token from the distribution `[V]` float64; never one of probability 0."""
        ...


class SeededChance:
    """The Philox stream of (seed, request): the same answers to the same questions on every machine and device.

    The stream has nothing in common with the coupled noise of the same seed and request.
    """

    __slots__ = ("_generator",)

    def __init__(self, *, seed: int, request_id: str) -> None:
        digest = hashlib.sha256(f"rejection\0{seed}\0{request_id}".encode()).digest()
        self._generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def accepts(self, prob: float) -> bool:
        """True with probability `prob`; consumes one number."""
        return self._uniform() < prob

    def draw(self, probs: Tensor) -> int:
        """A token from the distribution `[V]`; consumes one number.

        Raises:
            ValueError: `probs` hold NaN, infinity or nothing above 0.
        """
        # Summed in order and on the CPU: a parallel sum may fall by a rounding error and point at a token that has
        # probability 0, and would not give the same bits on every device.
        heights = np.cumsum(probs.cpu().numpy(), dtype=np.float64)
        total = float(heights[-1])
        if not 0 < total < float("inf"):
            raise ValueError(f"probs must add up to a positive number, got {total}")
        return int(np.searchsorted(heights, self._uniform() * total, side="right"))

    def _uniform(self) -> float:
        """A multiple of 2^-53 in [0, 1); a positive float times it stays below that float."""
        return float(int(self._generator.random_raw()) >> 11) * 2.0**-53
