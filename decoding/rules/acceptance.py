"""What a verifier accepts: declarative values whose test is plain arithmetic and comparisons.

The same `accepts` runs on floats, numpy arrays and torch tensors. A rule says of itself whether it is lossless, and
whether it looks at `target_prob` or `own_draft_prob`, which a recording may lack for a token it did not follow.
A rule with `escalates` gives a third answer: leave the token to the next verifier.
"""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from ...arguments import check_least, check_within
from .cascade_deferral import Deferral
from .equilibrium import Equilibrium
from .facts import Facts


class Ruling(Enum):
    """What becomes of a judged token."""

    keep = "keep"  # it stays, and the verifier endorses it
    escalate = "escalate"  # it stays, and the verifier leaves it to the next one
    refuse = "refuse"  # it goes, with all after it; the verifier's own token takes its place


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
    """Keep a token with target_prob >= theta x top_prob (the ratio VIA-SD routes on, arXiv:2606.12243). Lossy.

    With greedy decoding it is the lenience of Leviathan et al. 2023 (arXiv:2211.17192, A.5).
    """

    theta: float
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_within("theta", self.theta, "(0, 1]")

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
        check_within("eps", self.eps, "(0, 1]")
        check_within("delta", self.delta, "(0, 1]")

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays; `a > min(b, c)` is written `a > b or a > c`."""
        return (facts.target_prob > self.eps) | (facts.target_prob > self.delta * math.e ** (-facts.entropy))


@dataclass(frozen=True, slots=True)
class _ByDistance:
    """A threshold of the total variation distance, 0 to 1, for rules that say what they keep."""

    tau: float
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_within("tau", self.tau, "[0, 1]")


@dataclass(frozen=True, slots=True)
class Divergence(_ByDistance):
    """Keep a token where drafter and verifier differ by at most `tau` in total variation (0 to 1). Lossy."""

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays."""
        return facts.tvd <= self.tau


@dataclass(frozen=True, slots=True)
class Fuzzy(_ByDistance):
    """Keep what the verifier writes itself, and any token where the two differ by at most `tau`. Lossy.

    The fuzzy acceptance of PyramidSD (arXiv:2510.12966): the divergence, there left open, is the total variation
    distance (0 to 1) here. At 0 it keeps what `Exact` keeps.
    """

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays."""
        return facts.same | (facts.tvd <= self.tau)


@dataclass(frozen=True, slots=True)
class Band:
    """Three ways by r = target_prob / top_prob, the routing of VIA-SD (arXiv:2606.12243). Lossy.

    r >= accept: the token stays and this verifier endorses it. escalate <= r < accept: the verifier's own token
    takes its place. r < escalate: the verifier does not trust itself; the token stays for the next one to judge, and
    the tokens after it are judged on. The paper prints 0.5 and 1 - 0.3, by which the middle band is empty;
    docs/policies-lossy.md says what we take.

    Attributes:
        accept: 0 to 1.
        escalate: 0 to `accept`; at 0 nothing is escalated.
    """

    accept: float
    escalate: float
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_within("accept", self.accept, "(0, 1]")
        if not 0.0 <= self.escalate < self.accept:
            raise ValueError(f"escalate must be in [0, accept={self.accept:g}), got {self.escalate!r}")

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays and this verifier endorses it."""
        return facts.target_prob >= self.accept * facts.top_prob

    def escalates(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token is left to the next verifier."""
        return facts.target_prob < self.escalate * facts.top_prob


@dataclass(frozen=True, slots=True)
class Vouched:
    """Keep a token that the member at `level` or a larger one endorses, and judge the others as `Exact`. Lossy.

    With it the target takes a smaller verifier's word, and looks at what that one escalated only.

    Attributes:
        level: of the pool, >= 1; `Facts.judge` is compared with it.
    """

    level: int
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_least("level", self.level, 1)

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays."""
        return facts.same | (facts.judge >= self.level)


Rule = Exact | Ratio | Typical | Divergence | Fuzzy | Band | Vouched | Deferral | Equilibrium


def ruling(rule: Rule, facts: Facts) -> Ruling:
    """What `rule` says of one token, whose facts are scalars."""
    if rule.accepts(facts):
        return Ruling.keep
    escalates = getattr(rule, "escalates", None)
    return Ruling.escalate if escalates is not None and escalates(facts) else Ruling.refuse
