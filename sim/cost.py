"""Seconds of a forward: the interface, and the measured table."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Protocol

from ..traces.meta import CostTable

# Seconds of one prompt lookup. Measured with benchmarks/lookup.py on contexts of 100 to 200 tokens.
LOOKUP_S = 1.0e-5


class CostModel(Protocol):
    """What a forward costs on one device.

    Attributes:
        name: shown in tables.
        lookup_s: seconds of one prompt lookup.
    """

    name: str
    lookup_s: float

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward.

        Args:
            model: pool member.
            num_rows: requests in the batch.
            new_tokens: tokens fed, over all rows.
            context_tokens: tokens already in the KV cache, over all rows.
        """
        ...


class CostRangeError(ValueError):
    """A measured table was asked outside what was measured."""


class TableCost:
    """Seconds by new tokens per forward, measured; interpolated linearly, never extrapolated.

    The table holds seconds by the *sum* of new tokens over the batch, measured at contexts of about 128 tokens: what a
    longer context adds is not in it.

    Args:
        name: of the device.
        tables: model to table.

    Raises:
        CostRangeError: by `forward_s`, beyond the measured range or for a model without a table.
    """

    def __init__(self, name: str, tables: Mapping[str, CostTable]) -> None:
        self.name = name
        self.lookup_s = LOOKUP_S
        self._tables = tables
        self._known: dict[str, dict[int, float]] = {model: {} for model in tables}

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`."""
        try:
            return self._known[model][new_tokens]
        except KeyError:
            seconds = self._interpolate(model, new_tokens)
            self._known[model][new_tokens] = seconds
            return seconds

    def _interpolate(self, model: str, new_tokens: int) -> float:
        table = self._tables.get(model)
        if table is None:
            raise CostRangeError(f"cost {self.name}: no table for model {model!r}; it has {', '.join(self._tables)}")
        points = table.new_tokens
        if not points[0] <= new_tokens <= points[-1]:
            raise CostRangeError(
                f"cost {self.name}: {model} was measured for {points[0]} to {points[-1]} new tokens a forward, "
                f"asked for {new_tokens}; use a smaller batch or another cost"
            )
        right = bisect_left(points, new_tokens)
        if points[right] == new_tokens:
            return table.seconds[right]
        share = (new_tokens - points[right - 1]) / (points[right] - points[right - 1])
        return table.seconds[right - 1] + share * (table.seconds[right] - table.seconds[right - 1])
