"""Coupled sampling noise: one Gumbel vector per request and position, the same bits on every machine and device.

token = argmax(logits / temperature + noise) is a draw from softmax(logits / temperature) (Gumbel-max). All models of a
pool share the noise of a position, so the text a target samples does not depend on who drafted for it
(Daliri et al. 2024, arXiv:2408.07978).

A position is the number of emitted tokens before the one drawn. Letters: Q positions, V vocabulary.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...traces.meta import Sampling

_LN2 = 0.6931471805599453
# ln(m) = 2 s (1 + s^2/3 + s^4/5 + ...), s = (m - 1) / (m + 1); |s| < 0.1716, so eleven terms reach float64.
_LOG_SERIES = tuple(2.0 / (2 * term + 1) for term in range(11))


def _portable_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm of positive numbers by additions, products and quotients alone.

    IEEE 754 fixes the bits of those; the log of a maths library may differ in the last bit between machines.
    """
    mantissa, exponent = np.frexp(values)
    low = mantissa < 0.7071067811865476
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    exponent = exponent - low
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.full_like(ratio, _LOG_SERIES[-1])
    for coefficient in reversed(_LOG_SERIES[:-1]):
        series = series * square + coefficient
    return exponent * _LN2 + ratio * series


def _key(seed: int, request_id: str) -> int:
    """128-bit Philox key of one request under one seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{request_id}".encode()).digest()[:16], "little")


def gumbel(seed: int, request_id: str, position: int, vocab_size: int) -> NDArray[np.float32]:
    """`[V]` standard Gumbel noise: the Philox stream of (seed, request) at counter `position`.

    Raises:
        ValueError: a negative position.
    """
    if position < 0:
        raise ValueError(f"position must be >= 0, got {position}")
    generator = np.random.Philox(key=_key(seed, request_id), counter=position << 64)
    # 52 bits and a half: exact in float64, never 0 and never 1.
    uniform = ((generator.random_raw(vocab_size) >> 12).astype(np.float64) + 0.5) * 2.0**-52
    return (-_portable_log(-_portable_log(uniform))).astype(np.float32)


class RequestNoise:
    """The noise of one request; every position is drawn once and kept.

    Attributes:
        seed: of the run.
        request_id: whose noise this is.
        vocab_size: length of every vector.
    """

    __slots__ = ("_kept", "request_id", "seed", "vocab_size")

    def __init__(self, *, seed: int, request_id: str, vocab_size: int) -> None:
        self.seed = seed
        self.request_id = request_id
        self.vocab_size = vocab_size
        self._kept: dict[int, NDArray[np.float32]] = {}

    def at(self, position: int) -> NDArray[np.float32]:
        """`[V]` noise of one position; do not write to it."""
        kept = self._kept.get(position)
        if kept is None:
            kept = gumbel(self.seed, self.request_id, position, self.vocab_size)
            self._kept[position] = kept
        return kept

    def rows(self, positions: Sequence[int]) -> NDArray[np.float32]:
        """`[Q, V]` noise of many positions, repeats allowed."""
        return np.stack([self.at(int(position)) for position in positions])


def noise_of(sampling: Sampling, request_id: str, vocab_size: int) -> RequestNoise | None:
    """The noise of a request under coupled sampling; None if greedy."""
    if sampling.seed is None:
        return None
    return RequestNoise(seed=sampling.seed, request_id=request_id, vocab_size=vocab_size)
