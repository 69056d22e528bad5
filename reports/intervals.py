"""A figure and its 95% confidence interval; of a mean over seeds by Student's t."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import atan, cos, pi, sin, sqrt
from statistics import fmean, stdev

LEVEL = 0.95
NORMAL = 1.959963984540054  # the z with P(|Z| <= z) = 0.95
# What stands below figures in which chance has a part, of one seed alone.
ONE_SEED = "one seed, {}: chance has a part in these figures and their order, how large a part is not known"


class OverTags(StrEnum):
    """What is made of the figures of each tag."""

    mean = "mean"
    worst = "worst"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure and its confidence interval."""

    mean: float
    low: float  # <= high
    high: float

    @property
    def half_width(self) -> float:
        """Half of what lies between both ends."""
        return (self.high - self.low) / 2

    @property
    def bounds(self) -> tuple[float, float]:
        """Both ends, the lower one first."""
        return self.low, self.high


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values and its 95% interval; raises ValueError for fewer than two values."""
    count = len(values)
    if count < 2:
        raise ValueError(f"an interval needs at least 2 values, got {count}")
    if min(values) == max(values):  # no rounding error shall look like a spread
        return Interval(mean=values[0], low=float(values[0]), high=float(values[0]))
    mean, half_width = fmean(values), t_quantile(count - 1) * stdev(values) / sqrt(count)
    return Interval(mean=mean, low=mean - half_width, high=mean + half_width)


def t_quantile(degrees: int) -> float:
    """The t with P(|T| <= t) = 0.95 for Student's T of `degrees` >= 1 degrees of freedom."""
    low, high = 0.0, 16.0  # 12.7 at one degree, and less at more
    while low < (middle := (low + high) / 2) < high:
        if _central_prob(middle, degrees) < LEVEL:
            low = middle
        else:
            high = middle
    return high


def _central_prob(t: float, degrees: int) -> float:
    """P(|T| <= t), in closed form for whole degrees (Abramowitz & Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(degrees))
    odd = degrees % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 + odd, degrees, 2):
        total += term
        term *= cos(angle) ** 2 * power / (power + 1)
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
