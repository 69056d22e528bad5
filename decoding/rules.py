"""What a verifier accepts and when a draft ends early: declarative values, and the facts of a token that they see.

A rule is a frozen value whose test is plain arithmetic and comparisons, so that one definition serves floats, numpy
arrays and torch tensors. A verifier's rule says whether it is lossless, and whether it reads `target_prob` or
`own_draft_prob`, which a recording may lack for a token it did not follow; one with `escalates` may also leave the
token to the next verifier, and under rejection sampling one with `law` accepts at random, as lossless ones do: the text
then follows that law in place of the verifier's. The `holds` of a draft's stop takes the signal of the newest token and
a product over the tokens of this draft: of the drafter's probabilities, or of the rule's own `factor`. The token at
which it holds stays in the draft.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from math import nan
from typing import Any, ClassVar, NamedTuple

from ..base.errors import check_least, check_within


class Facts(NamedTuple):
    """What a rule sees of a judged token, from both distributions there; fields and answer are all `[]` or `[K]`."""

    same: Any  # whether the verifier would write this very token
    draft_prob: Any  # the drafter's probability of it, 0 to 1; NaN for a model-free drafter
    target_prob: Any  # the verifier's probability of it, 0 to 1
    top_prob: Any  # the verifier's largest probability, 0 to 1
    entropy: Any  # of the verifier, nats
    tvd: Any  # total variation distance of the two distributions, 0 to 1; NaN for a model-free drafter
    # level of the highest member that endorses it so far: the last verifier that accepted it, else its drafter
    judge: Any
    draft_top_prob: Any  # the drafter's largest probability, 0 to 1; NaN for a model-free drafter
    # the drafter's probability of the token the verifier would write instead, 0 to 1; NaN for a model-free drafter, and
    # where a recording does not hold that token
    own_draft_prob: Any
    own_prob: Any  # the verifier's probability of the token it would write, 0 to 1; `top_prob` in greedy decoding


def unknown_facts(judge: int) -> Facts:
    """The facts where only the token's endorser is known."""
    nan = math.nan
    return Facts(False, nan, nan, nan, nan, nan, judge, nan, nan, nan)  # noqa: FBT003 - by position as everywhere


KINDS = ("chow", "diff", "opt", "token")


@dataclass(frozen=True, slots=True)
class Deferral:
    """Keep the drafter's token where the cascade would not defer to the verifier. Lossy.

    Speculative cascades (Narasimhan et al., Faster Cascades via Speculative Decoding, arXiv:2405.19261). The drafter's
    token is kept where

    - `chow`: draft_top_prob >= 1 - eps: the drafter is sure. The verifier's distribution is not used.
    - `diff`: draft_top_prob >= top_prob - eps: the verifier is hardly surer.
    - `opt`: draft_top_prob >= top_prob - eps x tvd: as `diff`, where deferring costs as much as rejected drafts do: the
      total variation distance.
    - `token`: target_prob >= (1 - eps) x top_prob: the verifier finds this very token good enough, in proportion to
      its best one (the paper's third token-specific rule; its first compares the drafter's probability of the token,
      its second the verifier's, with top_prob - eps).

    Where the cascade defers, its text is the verifier's: the token is kept if the verifier writes it too (`same`), as
    in plain speculation. Under rejection sampling `same` is the most probable token, so what is kept there leans
    towards it; the paper draws from norm(max(0, ...)) of the mixed distribution instead.
    """

    kind: str  # one of `KINDS`
    eps: float  # 0 to 1; at 0 `token` keeps ties for the best only
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        check_within("eps", self.eps, "[0, 1]")

    @property
    def needs_target_prob(self) -> bool:
        """Only `token` needs the verifier's probability of the token."""
        return self.kind == "token"

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token is accepted."""
        if self.kind == "chow":
            keeps = facts.draft_top_prob >= 1.0 - self.eps
        elif self.kind == "diff":
            keeps = facts.draft_top_prob >= facts.top_prob - self.eps
        elif self.kind == "opt":
            keeps = facts.draft_top_prob >= facts.top_prob - self.eps * facts.tvd
        else:
            keeps = facts.target_prob >= (1.0 - self.eps) * facts.top_prob
        return facts.same | keeps


# Keeps two probabilities of 0 from dividing 0 by 0; far below the resolution of any recording, and exact in fp32.
LEAST = 2.0**-100


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """Keep the drafted token if it scores no worse in equilibrium than the verifier's own. Lossy.

    The Consensus Game (Jacob et al., arXiv:2310.09139): a generator picks a candidate that should read as correct, or
    as incorrect; a discriminator says which it was; both are paid when it is right, and both are held to what they
    believed at first (piKL, no-regret). Here the drafter is the generator and the verifier the discriminator, over two
    candidates: the drafted token d and the verifier's own token o.

    Priors, from what each model gives the two: a_1 = draft_prob / (draft_prob + own_draft_prob) and
    b_1 = target_prob / (target_prob + own_prob). Asked for an incorrect candidate, the generator picks with 1 - a; of o
    the discriminator believes 1 - b. With this symmetry, ours, each player is one number, and a round t = 1, 2, ... is
    in closed form (logit x = log(x / (1 - x)), means over the rounds so far)

        logit a_(t+1) = (mean(b) - 1/2 + generator x logit a_1) / (1 / (eta t) + generator)
        logit b_(t+1) = (mean(a) - 1/2 + discriminator x logit b_1) / (1 / (eta t) + discriminator)

    A candidate's score is the discriminator's last probability: d is accepted if b >= 1/2. (The paper ranks by either
    player. By the product of both, rounds with equal lambdas change nothing: a + b >= 1 then holds just if it held at
    first.) In greedy decoding the verifier's own token is its most probable one; with coupled sampling it is its
    sample.
    """

    generator: float = 0.1  # lambda of the drafter, 0.01 to 100: how strongly it is held to its prior
    discriminator: float = 0.2  # lambda of the verifier, 0.01 to 100
    eta: float = 1.0  # learning rate, > 0
    rounds: int = 8  # updates, 1 to 100
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = True
    needs_own_draft_prob: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_within("generator", self.generator, "[0.01, 100]")
        check_within("discriminator", self.discriminator, "[0.01, 100]")
        check_within("eta", self.eta, "(0, inf)")
        check_within("rounds", self.rounds, "[1, 100]")

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token is accepted."""
        _, verifier = self.consensus(facts)
        return facts.same | (verifier >= 0.5)

    def consensus(self, facts: Facts) -> tuple[Any, Any]:
        """(a, b) after all rounds: the drafted token's probability by drafter and by verifier, 0 to 1."""
        drafter_odds = (facts.draft_prob + LEAST) / (facts.own_draft_prob + LEAST)
        verifier_odds = (facts.target_prob + LEAST) / (facts.own_prob + LEAST)
        drafter, verifier = drafter_odds / (1.0 + drafter_odds), verifier_odds / (1.0 + verifier_odds)
        sum_drafter, sum_verifier = drafter, verifier
        for number in range(1, self.rounds + 1):
            slack = 1.0 / (self.eta * number)
            drafter = _player(sum_verifier / number, drafter_odds, self.generator, slack)
            verifier = _player(sum_drafter / number, verifier_odds, self.discriminator, slack)
            sum_drafter, sum_verifier = sum_drafter + drafter, sum_verifier + verifier
        return drafter, verifier


def _player(other: Any, prior_odds: Any, held: float, slack: float) -> Any:  # noqa: ANN401 - a float, or an array
    """One update of a player, from the other's mean so far and the odds of its own prior."""
    scale = slack + held
    odds = math.e ** ((other - 0.5) / scale) * prior_odds ** (held / scale)
    return odds / (1.0 + odds)


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Judge by a mixture, weight x verifier + (1 - weight) x drafter. Lossy.

    Static ensemble verification (DIVERSE, arXiv:2604.07622), `assistant_ensemble_weight` of transformers 5. Under
    rejection sampling the text follows the mixture: a token is kept with probability
    min(1, 1 - weight + weight x target_prob / draft_prob), in the mean 1 - weight x tvd, and a rejected one is replaced
    as without a mixture.

    In greedy decoding the token is kept where the mixture gives it no less than the verifier's own token, which else
    takes its place. transformers writes the mixture's most probable token of all; a recording does not hold a third
    one. What transformers keeps is kept here, too. Coupled sampling does the same.
    """

    weight: float  # of the verifier, in (0, 1); at 1 this would be `Exact`
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = True
    needs_own_draft_prob: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_within("weight", self.weight, "(0, 1)")

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token is accepted where nothing is drawn."""
        own = self.law(facts.own_prob, facts.own_draft_prob)
        return facts.same | (self.law(facts.target_prob, facts.draft_prob) >= own)

    def law(self, target_probs: Any, draft_probs: Any) -> Any:  # noqa: ANN401 - floats, arrays or tensors
        """The mixture of two distributions, or of two probabilities of a token."""
        return self.weight * target_probs + (1.0 - self.weight) * draft_probs


class Ruling(Enum):
    """The verdict on a judged token."""

    keep = "keep"  # accepted, and the verifier endorses it
    escalate = "escalate"  # kept, and left to the next verifier to judge
    refuse = "refuse"  # dropped, with all after it; the verifier's own token takes its place


@dataclass(frozen=True, slots=True)
class Exact:
    """Lossless: keep what the verifier writes itself (`same`): its argmax, or its coupled sample, by the run's mode."""

    lossless: ClassVar[bool] = True
    needs_target_prob: ClassVar[bool] = False

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token is accepted."""
        return facts.same


@dataclass(frozen=True, slots=True)
class Ratio:
    """Keep a token with target_prob >= theta x top_prob. Lossy.

    VIA-SD routes on this ratio (arXiv:2606.12243); with greedy decoding it is the lenience of Leviathan et al. 2023
    (arXiv:2211.17192, A.5).
    """

    theta: float
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_within("theta", self.theta, "(0, 1]")

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token is accepted."""
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
        """Whether the token is accepted; `a > min(b, c)` is written `a > b or a > c`."""
        return (facts.target_prob > self.eps) | (facts.target_prob > self.delta * math.e ** (-facts.entropy))


@dataclass(frozen=True, slots=True)
class _ByDistance:
    """A threshold of the total variation distance, 0 to 1; subclasses say what they keep."""

    tau: float
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_within("tau", self.tau, "[0, 1]")


@dataclass(frozen=True, slots=True)
class Divergence(_ByDistance):
    """Keep a token where drafter and verifier differ by at most `tau` in total variation (0 to 1). Lossy."""

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token is accepted."""
        return facts.tvd <= self.tau


@dataclass(frozen=True, slots=True)
class Fuzzy(_ByDistance):
    """Keep what the verifier writes itself, and any token where the two differ by at most `tau`. Lossy.

    PyramidSD (arXiv:2510.12966) leaves the divergence open: here total variation, 0 to 1. At 0 it keeps what `Exact`
    keeps.
    """

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token is accepted."""
        return facts.same | (facts.tvd <= self.tau)


@dataclass(frozen=True, slots=True)
class Band:
    """Three ways by r = target_prob / top_prob, the routing of VIA-SD (arXiv:2606.12243). Lossy.

    r >= accept: the token is kept and this verifier endorses it. escalate <= r < accept: the verifier's own token
    takes its place. r < escalate: the verifier is not sure; the token is kept for the next one to judge, and the
    tokens after it are judged too. The paper prints 0.5 and 1 - 0.3, by which the middle band is empty;
    docs/policies-lossy.md says what we take.
    """

    accept: float  # 0 to 1
    escalate: float  # 0 to `accept`; at 0 nothing is escalated
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_within("accept", self.accept, "(0, 1]")
        if not 0.0 <= self.escalate < self.accept:
            raise ValueError(f"escalate must be in [0, accept={self.accept:g}), got {self.escalate!r}")

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token is kept and this verifier endorses it."""
        return facts.target_prob >= self.accept * facts.top_prob

    def escalates(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token is left to the next verifier."""
        return facts.target_prob < self.escalate * facts.top_prob


@dataclass(frozen=True, slots=True)
class Vouched:
    """Keep a token that the member at `level` or a larger one endorses, and judge the others as `Exact`. Lossy."""

    level: int  # of the pool, >= 1; `Facts.judge` is compared with it
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_least("level", self.level, 1)

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token is accepted."""
        return facts.same | (facts.judge >= self.level)


Rule = Exact | Ratio | Typical | Divergence | Fuzzy | Band | Vouched | Deferral | Equilibrium | Ensemble


# What a rule is asked of a token, by method.
_ASKED = {"accepts": "accepted", "escalates": "escalated"}


def answer(rule: Rule, method: str, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
    """What `accepts` or `escalates` of a rule says, False without one; raises ValueError where it returns nothing."""
    asked = getattr(rule, method, None)
    said = False if asked is None else asked(facts)
    if said is None:
        raise ValueError(f"{method} must return whether the token is {_ASKED[method]}, got None")
    return said


def ruling(rule: Rule, facts: Facts) -> Ruling:
    """The verdict of `rule` on one token, whose facts are scalars; raises as `answer`."""
    if answer(rule, "accepts", facts):
        return Ruling.keep
    return Ruling.escalate if answer(rule, "escalates", facts) else Ruling.refuse


class Signal(NamedTuple):
    """How sure a drafter is of its token; scalars, or arrays of one shape. NaN throughout for a model-free drafter."""

    prob: float  # the drafter's probability of the token, 0 to 1
    entropy: float  # of its distribution, nats
    gap: float  # its largest probability less its second largest, 0 to 1


# Of a model-free drafter, and of a context that is not recorded.
NO_SIGNAL = Signal(nan, nan, nan)


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
    """Stop when the chance that at least one token of this draft is rejected exceeds `chance`.

    SpecDec++ (Huang et al. 2024, arXiv:2405.19715): 1 - prod_i P(token i is kept | those before it are) > h. P is
    logistic here, 1 / (1 + exp(-(bias + prob p + root_entropy sqrt(H) + gap g + place / (1 + i)))), p the token's
    probability, H the entropy in nats, g the gap, i the token's index in the draft. The five weights are -50 to 50.
    """

    chance: float  # h, 0 to 1
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
    """Stop when the chance that all tokens of this draft are kept is below `chance`, a token's being exp(-h) p^g."""

    chance: float  # 0 to 1
    hazard: float  # h, the risk of every token, 0 to 50
    of_doubt: float  # g, the weight of its drafter's probability p, 0 to 50

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
    """A rule's factor of one token in its product over a draft, from its signal and its index in the draft, from 0."""
    factor: Callable[[Signal, int], float] = getattr(stop, "factor", _prob)
    return factor


def _prob(signal: Signal, index: int) -> float:
    return signal.prob
