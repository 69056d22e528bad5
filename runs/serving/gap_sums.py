"""Exact sums of times, and over runs of gaps, whose columns `log.ServingLog` describes."""

from operator import mul

import numpy as np
from numpy.typing import NDArray

from ..log import Columns

# Python's numbers take several times the room of numpy's: so many runs are turned into them at a time.
_AT_ONCE = 2**16


def total_gaps(gaps: Columns) -> int:
    """How many gaps all runs hold."""
    return exact_dot(gaps["count"], gaps["rows"])


def total_ps(gaps: Columns) -> int:
    """Picoseconds of all gaps together."""
    # The mean of a run is that of its first and its last gap, which together stay within 64 bits.
    ends = 2 * gaps["first_ps"] + gaps["increment_ps"] * (gaps["count"] - 1)
    return exact_dot(ends, gaps["count"] * gaps["rows"]) // 2


def exact_dot(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """The sum of products, in Python's whole numbers, since it may outgrow 64 bits."""
    found = 0
    for start in range(0, len(one), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        found += sum(map(mul, one[part].tolist(), other[part].tolist()))
    return found
