"""Seconds from a price list instead of the clock, so that a policy that weighs seconds sees what a replay shows it."""

from collections.abc import Sequence
from typing import Protocol

from ...decoding.overlap.world import OverlapOp
from ...decoding.results import Forward, OverlapResults, PartRun, Results, VerifyResults
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
        if isinstance(results, OverlapResults):
            return self._priced_parts(op, results)
        forwards, duration_s = self._run(op, op.level, results.forwards, verifies=isinstance(results, VerifyResults))
        self._now_s += duration_s
        return results._replace(forwards=forwards, duration_s=duration_s)

    def _priced_parts(self, op: AnyOp, results: OverlapResults) -> OverlapResults:
        """Members that work ahead of others; as in a replay on one device, one after the other."""
        assert isinstance(op, OverlapOp)
        parts, whole_s = [], 0.0
        for number, (level, part) in enumerate(zip(op.levels, results.parts, strict=True)):
            verifies = not (op.drafts and number == len(op.levels) - 1)
            forwards, duration_s = self._run(op, level, part.forwards, verifies=verifies)
            parts.append(PartRun(whole_s, forwards, duration_s, part.prefixes))
            whole_s += duration_s
        self._now_s += whole_s
        return results._replace(parts=parts, duration_s=whole_s)

    def _run(
        self, op: AnyOp, level: int, forwards: Sequence[Forward], *, verifies: bool
    ) -> tuple[list[Forward], float]:
        """The forwards of one member with their prices, and the seconds of them together."""
        priced = [self._priced_forward(self._names[level], forward) for forward in forwards]
        if not priced and not verifies:  # a model-free member runs no forward
            return [], self._prices.lookup_s * len(op.items)
        return priced, sum([repeats * seconds for _, _, repeats, seconds in priced])

    def _priced_forward(self, name: str, forward: Forward) -> Forward:
        num_rows, new_tokens, repeats, _ = forward
        seconds = self._prices.forward_s(name, num_rows=num_rows, new_tokens=new_tokens, context_tokens=0)
        return num_rows, new_tokens, repeats, seconds
