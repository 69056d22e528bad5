"""What a verifier accepts: declarative values whose test is plain arithmetic and comparisons.

The same `accepts` runs on floats, numpy arrays and torch tensors. Letters: K judged tokens. A rule says of itself
whether it is lossless, and whether it looks at `target_prob`, which a recording may lack for a token it did not follow.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple


class Facts(NamedTuple):
    """What a rule is told of a judged token: from both distributions at the context before it.

    Every field has one shape, `[]` or `[K]`; so has the answer of a rule.

    Attributes:
        same: whether the verifier would write this very token.
        draft_prob: the drafter's probability of it, 0 to 1; NaN for a model-free drafter.
        target_prob: the verifier's probability of it, 0 to 1.
        top_prob: the verifier's largest probability, 0 to 1.
        entropy: of the verifier, nats.
        tvd: total variation distance of the two distributions, 0 to 1; NaN for a model-free drafter.
    """

    same: Any
    draft_prob: Any
    target_prob: Any
    top_prob: Any
    entropy: Any
    tvd: Any


def _check_open_unit(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} must be in (0, 1], got {value!r}")


@dataclass(frozen=True, slots=True)
class Exact:
    """Lossless: keep what the verifier writes itself (its argmax, or its coupled sample).

    The sampling mode of the run says which token that is, so `same` is all that is asked.
    """

    lossless: ClassVar[bool] = True
    needs_target_prob: ClassVar[bool] = False

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays."""
        return facts.same


@dataclass(frozen=True, slots=True)
class Ratio:
    """Keep a token with target_prob >= theta x top_prob (the ratio VIA-SD routes on, arXiv:2606.12243). Lossy."""

    theta: float
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_open_unit("theta", self.theta)

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays."""
        return facts.target_prob >= self.theta * facts.top_prob


@dataclass(frozen=True, slots=True)
class Typical:
    """Typical acceptance of Medusa (arXiv:2401.10774, eq. 1): target_prob > min(eps, delta x exp(-entropy)). Lossy."""

    eps: float
    delta: float
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_open_unit("eps", self.eps)
        _check_open_unit("delta", self.delta)

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays; `a > min(b, c)` is written `a > b or a > c`."""
        return (facts.target_prob > self.eps) | (facts.target_prob > self.delta * math.e ** (-facts.entropy))


@dataclass(frozen=True, slots=True)
class Lenience:
    """Greedy lenience of Leviathan et al. 2023 (arXiv:2211.17192, A.5): target_prob >= lenience x top_prob. Lossy.

    At `lenience` 1 only tokens as probable as the verifier's best stay. It is `Ratio` under the field's other name for
    greedy decoding; kept apart so that tables print what the user asked for.
    """

    lenience: float
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_open_unit("lenience", self.lenience)

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays."""
        return facts.target_prob >= self.lenience * facts.top_prob


@dataclass(frozen=True, slots=True)
class Divergence:
    """Keep a token where drafter and verifier differ by at most `tau` in total variation (0 to 1). Lossy."""

    tau: float
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.tau <= 1.0:
            raise ValueError(f"tau must be in [0, 1], got {self.tau!r}")

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays."""
        return facts.tvd <= self.tau


Rule = Exact | Ratio | Typical | Lenience | Divergence
