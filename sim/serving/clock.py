"""The clock of simulated serving: whole picoseconds inside, seconds at the edges.

Sums of integers are the same in any order, so a closed form of many steps ends at the same instant as the steps.
"""

from math import inf

from ...traces.workloads.exact_seconds import PS_PER_S


def to_ps(seconds: float) -> int:
    """Picoseconds nearest to a number of seconds, ties to the even one; raises ValueError unless >= 0 and finite.

    A float of seconds names each picosecond up to 2^51 of them, which is 37 minutes; above, its own steps are wider
    than one (at a week 116 ps).
    """
    if not 0 <= seconds < inf:
        raise ValueError(f"seconds must be >= 0 and finite, got {seconds!r}")
    return round(seconds * PS_PER_S)


def to_s(ps: int) -> float:
    """The float of seconds nearest to a number of picoseconds."""
    return ps / PS_PER_S
