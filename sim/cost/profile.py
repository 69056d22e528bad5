"""Measured seconds of one model's forwards by new tokens, interpolated."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from .base import LOADED_ADVICE, CostRangeError


class Profile:
    """Seconds of one model's forwards by new tokens, measured; interpolated linearly.

    Beyond the measured range it refuses, or, told to extrapolate, continues its last segment upwards, never below the
    last measured value, and holds the first measured value downwards.

    Args:
        points: new tokens, strictly increasing.
        seconds: one for each point.
        whose: the model, for errors.
        extrapolate: answer beyond the measured range.

    Attributes:
        least: fewest new tokens that were measured.
        extrapolated: whether it has had to.
    """

    def __init__(self, points: Sequence[int], seconds: Sequence[float], *, whose: str, extrapolate: bool) -> None:
        self._points = points
        self._seconds = seconds
        self._whose = whose
        self._extrapolate = extrapolate
        self.least = points[0]
        self.extrapolated = False

    def seconds(self, new_tokens: int) -> float:
        """Seconds of a forward. Raises CostRangeError beyond the measured range, unless it extrapolates."""
        points = self._points
        if not points[0] <= new_tokens <= points[-1]:
            if not self._extrapolate:
                measured = f"{points[0]} to {points[-1]}" if len(points) > 1 else f"{points[0]}"
                raise CostRangeError(
                    f"{self._whose} was measured for {measured} new tokens a forward, asked for {new_tokens}",
                    "use a smaller batch or window, another cost, or `extrapolate`",
                    LOADED_ADVICE,
                )
            self.extrapolated = True
        return interpolated(points, self._seconds.__getitem__, new_tokens)


def interpolated(points: Sequence[int], value_at: Callable[[int], float], where: int) -> float:
    """Linear between points; before the first its value holds, after the last the last segment goes on if it rises.

    Args:
        points: strictly increasing.
        value_at: at a point, by its index.
        where: any number.
    """
    if where < points[0]:
        return value_at(0)
    if where > points[-1]:
        last = value_at(-1)
        if len(points) == 1:
            return last
        slope = (last - value_at(-2)) / (points[-1] - points[-2])
        return last + max(0.0, slope) * (where - points[-1])
    right = bisect_left(points, where)
    upper = value_at(right)
    if points[right] == where:
        return upper
    lower = value_at(right - 1)
    return lower + (where - points[right - 1]) / (points[right] - points[right - 1]) * (upper - lower)


def extrapolation_notes(models: Sequence[str]) -> tuple[str, ...]:
    """What `notes` says of models that were asked beyond what was measured."""
    return (f"seconds beyond what was measured: {', '.join(models)}",) if models else ()
