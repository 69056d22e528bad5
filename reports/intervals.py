"""A figure and its 95% confidence interval; of a mean over seeds by Student's t."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import atan, ceil, cos, exp, log, log10, pi, prod, sin, sqrt
from statistics import fmean, stdev
from typing import Any

LEVEL = 0.95
NORMAL = 1.959963984540054  # the z with P(|Z| <= z) = 0.95
MOST_UNITS = 1_000_000  # requests, sessions or seeds that anyone has
# The remark below random figures of one seed.
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
        """Half the distance between both ends."""
        return (self.high - self.low) / 2

    @property
    def bounds(self) -> tuple[float, float]:
        """Both ends, the lower one first."""
        return self.low, self.high

    def to_json(self) -> dict[str, Any]:
        """The mean, and both ends."""
        return {"mean": self.mean, "ci": list(self.bounds)}


def with_ends(interval: Interval, style: Callable[[float], str]) -> str:
    """A mean with the ends of its interval, if that has a width: a geometric mean is not midway between them."""
    ends = f" ({style(interval.low)} to {style(interval.high)})" if interval.half_width else ""
    return f"{style(interval.mean)}{ends}"


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values and its 95% interval; raises ValueError for fewer than two values."""
    count = len(values)
    if count < 2:
        raise ValueError(f"an interval needs at least 2 values, got {count}")
    if min(values) == max(values):  # so that a rounding error does not look like a spread
        return Interval(mean=values[0], low=float(values[0]), high=float(values[0]))
    mean, half_width = fmean(values), t_quantile(count - 1) * stdev(values) / sqrt(count)
    return Interval(mean=mean, low=mean - half_width, high=mean + half_width)


def interval_or_point(values: Sequence[float]) -> Interval:
    """As `mean_interval`; of a single value, without width."""
    return Interval(mean=values[0], low=values[0], high=values[0]) if len(values) == 1 else mean_interval(values)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[tuple[float, float]]:
    """Two figures at the same seeds, in their order; a single one, of a run without chance, serves for every seed."""
    seeds = sorted({*ours, *theirs})
    only = [next(iter(values.values())) if len(values) == 1 else None for values in (ours, theirs)]
    return [
        (ours[seed] if only[0] is None else only[0], theirs[seed] if only[1] is None else only[1]) for seed in seeds
    ]


def geometric_interval(values: Sequence[float]) -> Interval:
    """The geometric mean of independent values > 0, one or more, and its 95% interval, which has no width for one."""
    if len(values) == 1:
        return interval_or_point(values)  # itself, without rounding
    found = mean_interval([log(value) for value in values])
    return Interval(mean=exp(found.mean), low=exp(found.low), high=exp(found.high))


def over_product(together: Sequence[float], alone: Sequence[Sequence[float]]) -> list[float]:
    """By run, the effect of all changes over the product of each one's, all as ratios to a run without any."""
    return [whole / prod(parts) for whole, *parts in zip(together, *alone, strict=True)]


MANY = 200  # values; from there on Student's t is within a percent of the normal quantile


def enough_values(values: Sequence[float]) -> int | None:
    """About how many values like these would have an interval without 0: more than these; None where the mean is 0."""
    mean, spread = fmean(values), stdev(values)
    if not mean:
        return None
    count = max(len(values) + 1, ceil((NORMAL * spread / mean) ** 2))
    while count < MANY and t_quantile(count - 1) * spread / sqrt(count) >= abs(mean):
        count += 1
    return two_digits_up(count)


def enough_in_words(enough: int, units: str, num_tied: int) -> str:
    """That about `enough` of `units`, as "seeds", would separate one of `num_tied` policies from the best."""
    if enough > MOST_UNITS:
        return f"no number of {units} that anyone has would tell them apart (more than {MOST_UNITS:,})"
    each = " sessions" if units == "sessions" else ""  # the words before it are about requests
    return f"about {enough:,}{each} {'would do' if num_tied == 1 else 'would tell one of them apart'}"


def two_digits_up(number: float) -> int:
    """A number > 0 rounded up to two digits."""
    step = int(10 ** max(0, ceil(log10(max(number, 1.0))) - 2))
    return ceil(number / step) * step


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
