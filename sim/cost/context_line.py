"""Seconds of forwards as lines in the tokens held, so that many forwards can be added up at once.

A batch that only decodes reads a few tokens more in each forward. Where a cost says over which range its seconds lie on
a line, all of those forwards are one sum.
"""

from math import ceil, inf
from typing import NamedTuple, Protocol, runtime_checkable

from .base import CostModel


class ContextLine(NamedTuple):
    """Seconds of a forward by the tokens held: `start_s + slope_s x (held - start)` for `start <= held < end`.

    Attributes:
        start: tokens held, >= 0.
        end: above `start`; infinite where the line has none.
        start_s: at `start`.
        slope_s: for each token more.
    """

    start: int
    end: float
    start_s: float
    slope_s: float


@runtime_checkable
class LinedCost(CostModel, Protocol):
    """A cost model that says its lines, or why it has none: one that wraps another has what that one has."""

    def context_line(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> ContextLine:
        """The line that `context_tokens` lies on; arguments and errors as of `forward_s`, which lies on it.

        The same line for all tokens held between its ends.
        """
        ...

    def unlined(self) -> str:
        """Why it has no lines, in words; "" if it has."""
        ...


def why_unlined(cost: CostModel) -> str:
    """Why a cost has no lines, in words that name it; "" if it has."""
    if isinstance(cost, LinedCost):
        return cost.unlined()
    return f"cost {cost.name} has no lines by the tokens held"


def flat_line(seconds: float) -> ContextLine:
    """What is held makes no difference."""
    return ContextLine(0, inf, seconds, 0.0)


def upper_line(one: tuple[float, float], other: tuple[float, float], context_tokens: int) -> ContextLine:
    """The larger of two lines (seconds with nothing held, for each token held); they cross once, if at all."""
    (low_s, low_slope_s), (high_s, high_slope_s) = (one, other) if one[1] <= other[1] else (other, one)
    if high_slope_s == low_slope_s:
        return ContextLine(0, inf, max(low_s, high_s), high_slope_s)
    crossing = max(0, ceil((low_s - high_s) / (high_slope_s - low_slope_s)))
    if context_tokens < crossing:
        return ContextLine(0, crossing, low_s, low_slope_s)
    return ContextLine(crossing, inf, high_s + high_slope_s * crossing, high_slope_s)
