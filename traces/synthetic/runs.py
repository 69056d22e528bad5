"""Runs of agreement along which the rate falls.

A member agrees on the first token after a miss with a first rate, and on each later one with a rate that is by a share,
the decay, less than that of the token before. Letters: K lengths of runs.
"""

import numpy as np
from numpy.typing import NDArray

_NEGLIGIBLE = 1e-12  # share of runs that nobody will meet
_HALVINGS = 50


def surviving(first: float, decay: float) -> NDArray[np.float64]:
    """`[K]` share of runs that hold at least k = 0, 1, ... tokens; `first` in [0, 1], `decay` in (0, 1)."""
    lengths = np.arange(np.ceil(np.sqrt(-2.0 * np.log(_NEGLIGIBLE) / decay)) + 2)
    shares: NDArray[np.float64] = first**lengths * np.exp(np.log1p(-decay) * lengths * (lengths - 1) / 2)
    return shares


def rate_over_all(shares: NDArray[np.float64]) -> float:
    """Rate of agreement, given the shares of `surviving`: a cycle is a run, R tokens in the mean, and one miss."""
    return float(1.0 - 1.0 / shares.sum())


def first_rate(rate: float, decay: float) -> float:
    """The rate of first tokens with which the rate over all is `rate`, by halving: it rises with the first one."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rate_over_all(surviving(middle, decay)) < rate else (low, middle)
    return high
