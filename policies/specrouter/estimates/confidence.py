"""What a drafter's probability of its token says of the verifier: how likely a run of tokens survives.

SpecRouter routes by averages; the windows that its search finds are for tokens that are all alike. They are not: a
drafter that is sure is seldom refused. Of a run of tokens that nobody has judged, all survive with the probability
exp(-x), x the sum of (h + g d) over them: d = -ln p the doubt of a token's drafter, g what a nat of doubt weighs, and h
what every token risks however sure its drafter is. g = 0 is a fixed window, h = 0 and g = 1 take drafters at their
word. `stops.SurvivalBelow` tests it token by token in both worlds.

h and g are fitted for every drafter, judge and verifier as runs are judged. All tokens of a run count, also those after
the first refused one: a drafter that has gone astray is often sure of what follows, so that the doubts of tokens that
were judged on their own promise too much of a run. One Gauss-Newton step of the log-likelihood in (ln h, ln g) a token;
those of a tag start from those of all tags.
"""

from collections.abc import Sequence
from math import exp, expm1, log

from ..constants import RouterConstants

# None of these was tuned: what h and g may be at all (a window of 500 tokens, or none), and what no float goes beyond.
LEAST, MOST = 0.002, 8.0
NO_CHANCE = 700.0  # -ln of a survival of nothing
# Of a drafter without probabilities: every token counts as one of probability one half.
NO_PROB = log(2.0)

Trio = tuple[int, int, int]  # drafter, the highest member that endorses the token, verifier
Hazard = tuple[float, float]  # h and g


def doubt(prob: float) -> float:
    """-ln p of a drafted token, at least 0; that of one half where nothing is known."""
    if prob != prob:
        return NO_PROB
    return -log(prob) if 0.0 < prob < 1.0 else (0.0 if prob >= 1.0 else NO_CHANCE)


# h, g, and the curvature in (ln h, ln g): of h, of both, of g. A plain tuple: each judged token makes two.
_Fit = tuple[float, float, float, float, float]


class Survival:
    """Hazards by tag. Mutated by `note` and `note_run`.

    Args:
        constants: of the policy.
    """

    def __init__(self, constants: RouterConstants) -> None:
        self._weight = constants.hazard_weight
        self._kept = 1.0 - 1.0 / constants.hazard_memory
        self._longest = constants.hazard_step
        self._start: _Fit = (constants.hazard, constants.hazard_of_doubt, self._weight, 0.0, self._weight)
        self._all: dict[Trio, _Fit] = {}
        self._by_tag: dict[tuple[str, Trio], _Fit] = {}

    def hazard(self, tag: str, trio: Trio) -> Hazard:
        """(h, g), each `LEAST` to `MOST`."""
        fit = self._by_tag.get((tag, trio)) or self._all.get(trio) or self._start
        return fit[0], fit[1]

    def note(self, tag: str, trio: Trio, doubted: float, *, kept: bool, count: int = 1, others: float = 0.0) -> None:
        """Take in whether a run of tokens was kept.

        Args:
            tag: of the request.
            trio: of its last token.
            doubted: sum of the doubts of those that share the trio.
            kept: whether all were kept.
            count: tokens that share the trio, >= 1.
            others: x of the tokens that do not.
        """
        overall = self._all.get(trio, self._start)
        own = self._by_tag.get((tag, trio))
        if own is None:
            own = overall[0], overall[1], self._weight, 0.0, self._weight
        self._all[trio] = _step(overall, self._kept, self._longest, doubted, count, others, kept=kept)
        self._by_tag[tag, trio] = _step(own, self._kept, self._longest, doubted, count, others, kept=kept)

    def note_run(self, tag: str, tokens: Sequence[tuple[Trio, float]], num_kept: int) -> None:
        """Take in a run that was judged: trio and doubt of each token, and how many were kept."""
        sums: dict[Trio, tuple[int, float]] = {}
        for index, (trio, doubted) in enumerate(tokens):
            count, total = sums.get(trio, (0, 0.0))
            sums[trio] = count, total = count + 1, total + doubted
            others = 0.0
            if len(sums) > 1:
                for other, (tokens_of, doubts_of) in sums.items():
                    if other != trio:
                        hazard, of_doubt = self.hazard(tag, other)
                        others += tokens_of * hazard + doubts_of * of_doubt
            self.note(tag, trio, total, kept=index < num_kept, count=count, others=others)


def _step(fit: _Fit, forgets: float, longest: float, doubted: float, count: int, others: float, *, kept: bool) -> _Fit:
    """The fit after one run; ln h and ln g move by `longest` at most, and both stay from `LEAST` to `MOST`."""
    hazard, of_doubt, by_hazard, by_both, by_doubt = fit
    fixed, doubts = hazard * count, of_doubt * doubted
    x = fixed + doubts + others
    odds = 1.0 / expm1(x) if x < NO_CHANCE else 0.0  # s / (1 - s) at survival s = exp(-x)
    by_hazard = forgets * by_hazard + odds * fixed * fixed
    by_both = forgets * by_both + odds * fixed * doubts
    by_doubt = forgets * by_doubt + odds * doubts * doubts
    slope = (-1.0 if kept else odds) / (by_hazard * by_doubt - by_both * by_both)
    # Written out: calls would take as long as the rest.
    step = slope * (by_doubt * fixed - by_both * doubts)
    hazard *= exp(longest if step > longest else -longest if step < -longest else step)
    step = slope * (by_hazard * doubts - by_both * fixed)
    of_doubt *= exp(longest if step > longest else -longest if step < -longest else step)
    hazard = LEAST if hazard < LEAST else MOST if hazard > MOST else hazard
    of_doubt = LEAST if of_doubt < LEAST else MOST if of_doubt > MOST else of_doubt
    return hazard, of_doubt, by_hazard, by_both, by_doubt
