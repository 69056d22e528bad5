"""Drafter and verifier agree on a token as generator and discriminator of a signalling game."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ...arguments import check_within
from .facts import Facts

# Keeps two probabilities of 0 from dividing 0 by 0; far below what any recording resolves, and exact in fp32.
LEAST = 2.0**-100


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """Keep the drafted token if it scores no worse in equilibrium than the verifier's own. Lossy.

    The Consensus Game (Jacob et al., arXiv:2310.09139): a generator picks a candidate that should read as correct, or
    as incorrect; a discriminator says which it was; both are paid when it is right, and both are held to what they
    believed at first (piKL, no-regret). Here the drafter is the generator and the verifier the discriminator, over two
    candidates: the drafted token d and the verifier's own token o.

    Priors, from what each model gives the two: a_1 = draft_prob / (draft_prob + own_draft_prob) and
    b_1 = target_prob / (target_prob + top_prob). Asked for an incorrect candidate, the generator picks with 1 - a; of o
    the discriminator believes 1 - b. With this symmetry, ours, each player is one number, and a round t = 1, 2, ... is
    in closed form (logit x = log(x / (1 - x)), means over the rounds so far)

        logit a_(t+1) = (mean(b) - 1/2 + generator x logit a_1) / (1 / (eta t) + generator)
        logit b_(t+1) = (mean(a) - 1/2 + discriminator x logit b_1) / (1 / (eta t) + discriminator)

    A candidate scores what the discriminator gives it in the end: d stays if b >= 1/2. (The paper ranks by either
    player. By the product of both, equal lambdas make every round vain: a + b >= 1 then holds just if it held at
    first.) In greedy decoding the verifier's own token is its most probable one; with coupled sampling it is its
    sample, and its prior is still taken as top_prob, which favours the verifier.

    Attributes:
        generator: lambda of the drafter, 0.01 to 100: how strongly it is held to its prior.
        discriminator: lambda of the verifier, 0.01 to 100.
        eta: learning rate, > 0.
        rounds: updates, 1 to 100.
    """

    generator: float = 0.1
    discriminator: float = 0.2
    eta: float = 1.0
    rounds: int = 8
    lossless: ClassVar[bool] = False
    needs_target_prob: ClassVar[bool] = True
    needs_own_draft_prob: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_within("generator", self.generator, "[0.01, 100]")
        check_within("discriminator", self.discriminator, "[0.01, 100]")
        check_within("eta", self.eta, "(0, inf)")
        check_within("rounds", self.rounds, "[1, 100]")

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays."""
        _, verifier = self.consensus(facts)
        return facts.same | (verifier >= 0.5)

    def consensus(self, facts: Facts) -> tuple[Any, Any]:
        """(a, b) after all rounds: what drafter and verifier give the drafted token; the other one has the rest."""
        drafter_odds = (facts.draft_prob + LEAST) / (facts.own_draft_prob + LEAST)
        verifier_odds = (facts.target_prob + LEAST) / (facts.top_prob + LEAST)
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
