"""When a draft ends early: declarative rules on what the drafter said of the token it just wrote.

A rule is a frozen value and its test is plain arithmetic and comparisons, so that one definition serves floats,
numpy arrays and torch tensors. The token that trips the rule stays in the draft. Every `holds` takes the signal of the
newest token and a product over the tokens of this draft, and answers elementwise. What is multiplied is the drafter's
probability of each token, unless the rule has a `factor` of its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from ...arguments import check_within
from .signal import Signal

MOST_WEIGHT = 50.0  # of a `RefusalAbove`: sums of weighted signals then stay where exp of them is finite


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalAbove:
    """Stop when the chance that at least one token of this draft is refused exceeds `chance`.

    SpecDec++ (Huang et al. 2024, arXiv:2405.19715): 1 - prod_i P(token i is kept | those before it are) > h. There P is
    a network on the drafter's hidden states; here it is logistic in what the drafter says of the token,
    1 / (1 + exp(-(bias + prob p + root_entropy sqrt(H) + gap g + place / (1 + i)))), p its probability, H the entropy
    in nats, g the gap, i the token's index in the draft.

    Attributes:
        chance: h, 0 to 1.
        bias, prob, root_entropy, gap, place: weights, -50 to 50.
    """

    chance: float
    bias: float
    prob: float
    root_entropy: float
    gap: float
    place: float

    def __post_init__(self) -> None:
        check_within("chance", self.chance, "[0, 1]")
        for field in fields(self)[1:]:
            check_within(field.name, getattr(self, field.name), f"[-{MOST_WEIGHT:g}, {MOST_WEIGHT:g}]")

    def factor(self, signal: Signal, index: int) -> float:
        """The chance that the token at `index` >= 0 of this draft is kept, if those before it are."""
        score: float = (
            self.bias
            + self.prob * signal.prob
            + self.root_entropy * signal.entropy**0.5
            + self.gap * signal.gap
            + self.place / (1.0 + index)
        )
        chance: float = 1.0 / (1.0 + math.e ** (-score))
        return chance

    def holds(self, signal: Signal, product: float) -> bool:
        """Whether the draft ends here."""
        return 1.0 - product > self.chance


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalBelow:
    """Stop when the chance that all tokens of this draft are kept is below `chance`, a token's being exp(-h) p^g.

    Attributes:
        chance: 0 to 1.
        hazard: h, what every token risks, 0 to 50.
        of_doubt: g, the weight of its drafter's probability p, 0 to 50.
    """

    chance: float
    hazard: float
    of_doubt: float

    def __post_init__(self) -> None:
        check_within("chance", self.chance, "[0, 1]")
        for name in ("hazard", "of_doubt"):
            check_within(name, getattr(self, name), f"[0, {MOST_WEIGHT:g}]")

    def factor(self, signal: Signal, index: int) -> float:
        """The chance that a token is kept, if those before it are."""
        chance: float = math.e ** (-self.hazard) * signal.prob**self.of_doubt
        return chance

    def holds(self, signal: Signal, product: float) -> bool:
        """Whether the draft ends here."""
        return product < self.chance


Stop = ConfidenceBelow | EntropyAbove | GapBelow | ProductBelow | RefusalAbove | SurvivalBelow


def token_factor(stop: object) -> Callable[[Signal, int], float]:
    """What a rule multiplies over a draft, of a token's signal and its index in the draft, 0 for the first."""
    factor: Callable[[Signal, int], float] = getattr(stop, "factor", _prob)
    return factor


def _prob(signal: Signal, index: int) -> float:
    return signal.prob
