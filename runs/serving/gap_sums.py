"""Exact sums over runs of gaps, whose columns `log.ServingLog` describes."""

from operator import mul

from ..log import Columns


def total_gaps(gaps: Columns) -> int:
    """How many gaps all runs hold."""
    return sum(map(mul, gaps["count"].tolist(), gaps["rows"].tolist()))


def total_ps(gaps: Columns) -> int:
    """Picoseconds of all gaps together; Python's whole numbers, since they may outgrow 64 bits."""
    # The mean of a run is that of its first and its last gap, which together stay within 64 bits.
    ends = 2 * gaps["first_ps"] + gaps["increment_ps"] * (gaps["count"] - 1)
    sizes = gaps["count"] * gaps["rows"]
    doubled: int = sum(map(mul, ends.tolist(), sizes.tolist()))
    return doubled // 2
