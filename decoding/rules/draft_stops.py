"""When a draft ends early: declarative rules on what the drafter said of the token it just wrote.

A rule is a frozen value and its test is plain arithmetic and comparisons, so that one definition serves floats,
numpy arrays and torch tensors. The token that trips the rule stays in the draft. Every `holds` takes the signal of the
newest token and the product of the probabilities over this draft, and answers elementwise.
"""

from dataclasses import dataclass

from ...arguments import check_within
from .signal import Signal


@dataclass(frozen=True, slots=True)
class ConfidenceBelow:
    """Stop when the drafter's probability of the token it wrote is below `prob` (0 to 1)."""

    prob: float

    def __post_init__(self) -> None:
        check_within("prob", self.prob, "[0, 1]")

    def holds(self, signal: Signal, product: float) -> bool:
        """Whether the draft ends here."""
        return signal.prob < self.prob


@dataclass(frozen=True, slots=True)
class EntropyAbove:
    """Stop when the entropy of the drafter's distribution exceeds `nats` (>= 0)."""

    nats: float

    def __post_init__(self) -> None:
        check_within("nats", self.nats, "[0, inf]")

    def holds(self, signal: Signal, product: float) -> bool:
        """Whether the draft ends here."""
        return signal.entropy > self.nats


@dataclass(frozen=True, slots=True)
class GapBelow:
    """Stop when the two largest probabilities of the drafter differ by less than `gap` (0 to 1)."""

    gap: float

    def __post_init__(self) -> None:
        check_within("gap", self.gap, "[0, 1]")

    def holds(self, signal: Signal, product: float) -> bool:
        """Whether the draft ends here."""
        return signal.gap < self.gap


@dataclass(frozen=True, slots=True)
class ProductBelow:
    """Stop when the product of the drafter's probabilities over this draft is below `prob` (0 to 1)."""

    prob: float

    def __post_init__(self) -> None:
        check_within("prob", self.prob, "[0, 1]")

    def holds(self, signal: Signal, product: float) -> bool:
        """Whether the draft ends here."""
        return product < self.prob


Stop = ConfidenceBelow | EntropyAbove | GapBelow | ProductBelow
