"""NormalHedge: a choice among N experts of whom all gains are told, without a parameter to tune."""

from math import e, exp, log

HALVINGS = 40  # of the interval that holds the scale; what remains is below rounding


class NormalHedge:
    """Chaudhuri, Freund and Hsu 2009 (arXiv:0903.2851).

    R_i is the regret of not having followed expert i. With [x]+ = max(x, 0) and c such that the mean of
    exp([R_i]+^2 / 2c) is e, chances are proportional to [R_i]+ / c exp([R_i]+^2 / 2c), and even where nothing is
    regretted.

    Args:
        num_experts: N, >= 1.

    Attributes:
        chances: `[N]`, 0 to 1, sum 1.
    """

    def __init__(self, num_experts: int) -> None:
        self._regrets = [0.0] * num_experts
        self.chances = [1.0 / num_experts] * num_experts

    def learn(self, gains: list[float]) -> None:
        """Take in what every expert gained, `[N]`, 0 to 1 each."""
        mean = sum(chance * gain for chance, gain in zip(self.chances, gains, strict=True))
        self._regrets = [regret + gain - mean for regret, gain in zip(self._regrets, gains, strict=True)]
        count = len(gains)
        halves = [max(regret, 0.0) ** 2 / 2.0 for regret in self._regrets]
        if max(halves) <= 0.0:
            self.chances = [1.0 / count] * count
            return
        scale = _scale(halves)
        top = max(halves)
        weights = [half**0.5 * exp((half - top) / scale) for half in halves]
        total = sum(weights)
        self.chances = [weight / total for weight in weights]


def _scale(halves: list[float]) -> float:
    """c, by halving: the largest term alone bounds it from both sides."""
    high = max(halves)
    low = high / (1.0 + log(len(halves)))
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if sum(exp(half / middle) for half in halves) > e * len(halves):
            low = middle
        else:
            high = middle
    return high
