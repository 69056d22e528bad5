"""Seconds from a price list instead of the clock, so that a policy that weighs seconds sees what a replay shows it."""

from collections.abc import Sequence
from typing import Protocol

from ...decoding.results import Forward, Results, VerifyResults
from ...decoding.world import AnyOp


class Prices(Protocol):
    """What operations are said to take; the simulator's cost models fit by shape.

    `context_tokens` is told as 0, since nobody counts them here: prices must not depend on it.

    Attributes:
        lookup_s: seconds of one prompt lookup.
    """

    lookup_s: float

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward of `model` over `new_tokens` tokens of `num_rows` requests."""
        ...


class PricedSeconds:
    """A clock that only operations move, each by its price. Mutated by `priced`.

    Args:
        prices: of forwards and lookups.
        names: of the members, by level.
    """

    def __init__(self, prices: Prices, names: Sequence[str]) -> None:
        self._prices = prices
        self._names = names
        self._now_s = 0.0

    def now_s(self) -> float:
        """Seconds since the clock was made, >= 0."""
        return self._now_s

    def priced(self, op: AnyOp, results: Results) -> Results:
        """What a world did, with the prices of its forwards for seconds; moves the clock on by their sum."""
        name = self._names[op.level]
        forwards = [self._priced_forward(name, forward) for forward in results.forwards]
        if forwards or isinstance(results, VerifyResults):
            duration_s = sum([repeats * seconds for _, _, repeats, seconds in forwards])
        else:  # a model-free member runs no forward
            duration_s = self._prices.lookup_s * len(op.items)
        self._now_s += duration_s
        return results._replace(forwards=forwards, duration_s=duration_s)

    def _priced_forward(self, name: str, forward: Forward) -> Forward:
        num_rows, new_tokens, repeats, _ = forward
        seconds = self._prices.forward_s(name, num_rows=num_rows, new_tokens=new_tokens, context_tokens=0)
        return num_rows, new_tokens, repeats, seconds
