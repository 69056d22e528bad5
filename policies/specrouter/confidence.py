"""What a drafter's probability of its token says of the verifier: the token survives with probability p^gamma.

SpecRouter routes by averages; the windows that its search finds are for tokens that are all alike. They are not: a
drafter that is sure is seldom refused. One exponent for every drafter, judge and verifier turns a probability into a
survival, and since (p_1 p_2 ...)^gamma is the survival of a run, a rule on the product of probabilities, which both
worlds test token by token (`stops.ProductBelow`), stops a draft at any survival that is asked for.

gamma = 1 takes drafters at their word, below 1 a token survives more often than its drafter is sure of it: with greedy
decoding two models put the largest probability at the same token more often than either is sure. It is fitted as
tokens are judged, one Newton step of the log-likelihood in log gamma a token; the exponents of a tag start from those
of all tags.
"""

from math import exp, expm1, log

PRIOR_GAMMA = 0.25
PRIOR_WEIGHT = 4.0  # curvature, in tokens of medium doubt, that the start of an exponent counts for
LONGEST_STEP = 0.5  # of log gamma at one token
LEAST, MOST = 0.01, 8.0  # exponents
SURE = 0.005  # doubt below which a token that is kept tells next to nothing
NO_CHANCE = 700.0  # -ln of a survival of nothing
# Of a drafter without probabilities: every token counts as one of probability one half.
NO_PROB = log(2.0)

Trio = tuple[int, int, int]  # drafter, the highest member that endorses the token, verifier


def doubt(prob: float) -> float:
    """-ln p of a drafted token, at least 0; that of one half where nothing is known."""
    if prob != prob:
        return NO_PROB
    return -log(prob) if 0.0 < prob < 1.0 else (0.0 if prob >= 1.0 else NO_CHANCE)


class Survival:
    """Exponents by tag. Mutated by `note`."""

    def __init__(self) -> None:
        self._all: dict[Trio, tuple[float, float]] = {}
        self._by_tag: dict[tuple[str, Trio], tuple[float, float]] = {}

    def gamma(self, tag: str, trio: Trio) -> float:
        """The exponent, `LEAST` to `MOST`."""
        cell = self._by_tag.get((tag, trio)) or self._all.get(trio)
        return PRIOR_GAMMA if cell is None else cell[0]

    def note(self, tag: str, trio: Trio, doubted: float, *, kept: bool) -> None:
        """Take in one judged token with the `doubt` of its drafter."""
        if kept and doubted < SURE:
            return
        overall = self._all.get(trio, (PRIOR_GAMMA, PRIOR_WEIGHT))
        own = self._by_tag.get((tag, trio)) or (overall[0], PRIOR_WEIGHT)
        self._all[trio] = _step(overall, doubted, kept=kept)
        self._by_tag[tag, trio] = _step(own, doubted, kept=kept)


def _step(cell: tuple[float, float], doubted: float, *, kept: bool) -> tuple[float, float]:
    """(gamma, curvature) after one token."""
    gamma, curvature = cell
    x = gamma * doubted
    # x s / (1 - s) at survival s = exp(-x); 1 in the limit of no doubt.
    odds = x / expm1(x) if 1e-9 < x < NO_CHANCE else 1.0 if x < 1.0 else 0.0
    curvature += x * odds
    step = (-x if kept else odds) / curvature
    if step > LONGEST_STEP:
        step = LONGEST_STEP
    elif step < -LONGEST_STEP:
        step = -LONGEST_STEP
    gamma *= exp(step)
    return (LEAST if gamma < LEAST else MOST if gamma > MOST else gamma), curvature
