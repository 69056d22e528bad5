"""Coupled noise: one Gumbel vector per request and position, the same bits on every machine and device.

A position is the number of emitted tokens before the one drawn; token = argmax(logits / temperature + noise) is a draw
from softmax(logits / temperature). All models of a pool share the noise of a position, so the text that a target
samples does not depend on the drafter (Daliri et al. 2024, arXiv:2408.07978). Letters: Q positions, V vocabulary.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..traces.meta import Sampling

_LN2 = 0.6931471805599453
# ln(m) = 2 s (1 + s^2/3 + s^4/5 + ...), s = (m - 1) / (m + 1); |s| < 0.1716, so eleven terms reach float64.
_LOG_SERIES = tuple(2.0 / (2 * term + 1) for term in range(11))
_MANTISSA_BITS = 52
# As integers, the bits of 1.0 and of the float64 that mantissas begin at, the root of 1/2.
_ONE, _ROOT_HALF = (int(np.float64(value).view(np.int64)) for value in (1.0, 0.7071067811865476))
# Numbers computed at a time, so that intermediate values fit into the processor's nearest caches, and the most
# positions of a small vocabulary drawn together.
_TILE, _MOST_POSITIONS = 16384, 16


def _portable_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm of positive normal numbers by additions, products and quotients alone.

    IEEE 754 fixes the bits of those; the log of a maths library may differ in the last bit between machines.
    """
    bits = values.view(np.int64)
    exponent = (bits - _ROOT_HALF) >> _MANTISSA_BITS
    mantissa = (bits - (exponent << _MANTISSA_BITS)).view(np.float64)
    ratio = mantissa - 1.0
    mantissa += 1.0
    ratio /= mantissa
    square = np.multiply(ratio, ratio, out=mantissa)
    series = square * _LOG_SERIES[-1]
    for coefficient in _LOG_SERIES[-2:0:-1]:
        series += coefficient
        series *= square
    series += _LOG_SERIES[0]
    series *= ratio
    series += exponent * _LN2
    return series


def gumbel(seed: int, request_id: str, position: int, vocab_size: int) -> NDArray[np.float32]:
    """`[V]` standard Gumbel noise of one position; see `gumbel_rows`."""
    return gumbel_rows(seed, request_id, [position], vocab_size).reshape(vocab_size)


def gumbel_rows(seed: int, request_id: str, positions: Sequence[int], vocab_size: int) -> NDArray[np.float32]:
    """`[Q, V]` standard Gumbel noise: of each position the Philox stream of (seed, request) at that counter.

    Raises:
        ValueError: a negative position.
    """
    if min(positions) < 0:
        raise ValueError(f"position must be >= 0, got {min(positions)}")
    key = int.from_bytes(hashlib.sha256(f"{seed}\0{request_id}".encode()).digest()[:16], "little")
    raw = np.concatenate(
        [np.random.Philox(key=key, counter=position << 64).random_raw(vocab_size) for position in positions]
    )
    noise = np.empty(len(raw), dtype=np.float32)
    for start in range(0, len(raw), _TILE):
        # 52 bits and a half: exact in float64, never 0 and never 1.
        uniform = ((raw[start : start + _TILE] >> np.uint64(12)).view(np.int64) | _ONE).view(np.float64)
        uniform -= 1.0
        uniform += 2.0**-53
        for _ in range(2):
            uniform = _portable_log(uniform)
            np.negative(uniform, out=uniform)
        noise[start : start + _TILE] = uniform
    return noise.reshape(len(positions), vocab_size)


class RequestNoise:
    """The noise of one request; a position is drawn once and kept until `drop_before`.

    Of a small vocabulary several positions are drawn at once, 64 KiB at most. So a request that decodes holds the noise
    of the tokens after its text that are drafted or pending, 4 V bytes each, and those 64 KiB.
    """

    __slots__ = ("_kept", "_together", "request_id", "seed", "vocab_size")

    def __init__(self, *, seed: int, request_id: str, vocab_size: int) -> None:
        self.seed = seed
        self.request_id = request_id
        self.vocab_size = vocab_size
        self._together = max(1, min(_TILE // vocab_size, _MOST_POSITIONS))
        self._kept: dict[int, NDArray[np.float32]] = {}

    @property
    def held_bytes(self) -> int:
        """Memory of what is kept."""
        return sum(row.nbytes for row in self._kept.values())

    def at(self, position: int) -> NDArray[np.float32]:
        """`[V]` noise of one position; not to be written to."""
        kept = self._kept.get(position)
        if kept is None:
            new = [ahead for ahead in range(position, position + self._together) if ahead not in self._kept]
            self._kept.update(zip(new, gumbel_rows(self.seed, self.request_id, new, self.vocab_size), strict=True))
            kept = self._kept[position]
        return kept

    def rows(self, positions: Sequence[int]) -> NDArray[np.float32]:
        """`[Q, V]` noise of many positions, repeats allowed."""
        return np.stack([self.at(int(position)) for position in positions])

    def drop_before(self, position: int) -> None:
        """Forget earlier positions; one that is read again is drawn again."""
        for past in [kept for kept in self._kept if kept < position]:
            del self._kept[past]


def noise_of(sampling: Sampling, request_id: str, vocab_size: int) -> RequestNoise | None:
    """The noise of a request under coupled sampling; None if greedy."""
    if sampling.seed is None:
        return None
    return RequestNoise(seed=sampling.seed, request_id=request_id, vocab_size=vocab_size)
