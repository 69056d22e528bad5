"""A profile measured over new tokens and over tokens held, interpolated in both."""

from bisect import bisect_right
from itertools import pairwise
from math import inf

from pydantic import Field, model_validator

from ...traces.meta import LEAST_SECONDS, MOST_SECONDS, Record
from .base import LOADED_ADVICE, CostRangeError
from .context_line import ContextLine
from .profile import Profile, interpolated


class CostGrid(Record):
    """Measured seconds of one forward of one model, by new tokens and by tokens already in its cache, over all rows.

    Letters: N counts of new tokens, C of tokens held.

    Attributes:
        new_tokens: `[N]`, strictly increasing, >= 1.
        context_tokens: `[C]`, strictly increasing, >= 0.
        seconds: `[N, C]`, 1e-12 to 1e9.
    """

    new_tokens: tuple[int, ...] = Field(min_length=1)
    context_tokens: tuple[int, ...] = Field(min_length=1)
    seconds: tuple[tuple[float, ...], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _aligned(self) -> "CostGrid":
        if not _increasing(self.new_tokens, least=1):
            raise ValueError("new_tokens must be strictly increasing from >= 1")
        if not _increasing(self.context_tokens, least=0):
            raise ValueError("context_tokens must be strictly increasing from >= 0")
        if len(self.seconds) != len(self.new_tokens):
            raise ValueError("seconds must have one row for each entry of new_tokens")
        if any(len(row) != len(self.context_tokens) for row in self.seconds):
            raise ValueError("each row of seconds must have one entry for each of context_tokens")
        if not all(LEAST_SECONDS <= second <= MOST_SECONDS for row in self.seconds for second in row):
            raise ValueError(f"seconds must be in [{LEAST_SECONDS:g}, {MOST_SECONDS:g}]")
        return self


class GridProfile:
    """Seconds from a `CostGrid`, bilinear between its points.

    Beyond the measured range it refuses or extrapolates as `Profile` does, along each axis on its own.

    Args:
        grid: what was measured.
        whose, extrapolate: as of `Profile`.
    """

    def __init__(self, grid: CostGrid, *, whose: str, extrapolate: bool) -> None:
        self._contexts = grid.context_tokens
        self._whose = whose
        self._extrapolate = extrapolate
        self._columns = [
            Profile(grid.new_tokens, column, whose=whose, extrapolate=extrapolate)
            for column in zip(*grid.seconds, strict=True)
        ]
        self._beyond_context = False

    @property
    def extrapolated(self) -> bool:
        """Whether it has been asked beyond what was measured."""
        return self._beyond_context or any(column.extrapolated for column in self._columns)

    def seconds(self, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward. Raises CostRangeError beyond the measured range, unless it extrapolates."""
        self._check(context_tokens)
        return interpolated(self._contexts, lambda column: self._columns[column].seconds(new_tokens), context_tokens)

    def context_line(self, new_tokens: int, context_tokens: int) -> ContextLine:
        """The line that `context_tokens` lies on: between two of the measured, or beyond them. Raises as `seconds`."""
        self._check(context_tokens)
        contexts = self._contexts
        if context_tokens < contexts[0]:
            return ContextLine(0, contexts[0], self._columns[0].seconds(new_tokens), 0.0)
        if len(contexts) == 1:
            slope_s, left = 0.0, 0
        else:
            left = min(bisect_right(contexts, context_tokens), len(contexts) - 1) - 1
            rise_s = self._columns[left + 1].seconds(new_tokens) - self._columns[left].seconds(new_tokens)
            slope_s = rise_s / (contexts[left + 1] - contexts[left])
        if context_tokens > contexts[-1]:
            slope_s = max(0.0, slope_s)
            return ContextLine(contexts[-1] + 1, inf, self._columns[-1].seconds(new_tokens) + slope_s, slope_s)
        # The last of the measured belongs to the line before it, so that asking beyond it is seen.
        end = contexts[left + 1] if left + 2 < len(contexts) else contexts[-1] + 1
        return ContextLine(contexts[left], end, self._columns[left].seconds(new_tokens), slope_s)

    def _check(self, context_tokens: int) -> None:
        contexts = self._contexts
        if not contexts[0] <= context_tokens <= contexts[-1]:
            if not self._extrapolate:
                raise CostRangeError(
                    f"{self._whose} was measured with {contexts[0]} to {contexts[-1]} tokens held, asked for "
                    f"{context_tokens}",
                    "use another cost or `extrapolate`",
                    LOADED_ADVICE,
                )
            self._beyond_context = True


def _increasing(values: tuple[int, ...], *, least: int) -> bool:
    return values[0] >= least and all(a < b for a, b in pairwise(values))
