"""The two learners of `banditspec`: which arm next, from what its rounds have brought. Letters: K arms."""

from math import exp, inf, log, sqrt
from random import Random


class Ucb:
    """Optimism: the arm of the largest upper bound (UCB1, Auer et al. 2002), each once to begin with.

    Args:
        num_arms: K.
        explore: factor on the radius sqrt(2 ln t / plays), >= 0.
    """

    def __init__(self, num_arms: int, explore: float) -> None:
        self._explore = explore
        self._plays = [0] * num_arms
        self._tokens = [0.0] * num_arms
        self._seconds = [0.0] * num_arms
        self._picks = 0

    def pick(self) -> int:
        """The next arm; counted as played at once, since others may pick before its round ends."""
        arm = self._plays.index(0) if 0 in self._plays else self._best()
        self._plays[arm] += 1
        self._picks += 1
        return arm

    def reward(self, arm: int, tokens: float, seconds: float) -> None:
        """What a round of the arm brought and took."""
        self._tokens[arm] += tokens
        self._seconds[arm] += seconds

    def _best(self) -> int:
        # An arm whose first round has not ended is as good as the best.
        rates = [t / s if s > 0.0 else inf for t, s in zip(self._tokens, self._seconds, strict=True)]
        known = [rate for rate in rates if rate < inf]
        best = max(known, default=1.0)
        spread = 2.0 * log(self._picks)
        bounds = [
            min(rate / best, 1.0) + self._explore * sqrt(spread / plays)
            for rate, plays in zip(rates, self._plays, strict=True)
        ]
        return bounds.index(max(bounds))


class Exp3:
    """Chance: arms are drawn by weights that grow with what they brought (Auer et al. 2002).

    Args:
        num_arms: K.
        explore: share of even draws, above 0 to 1; also the pace of the weights.
        rng: of the draws.
    """

    def __init__(self, num_arms: int, explore: float, rng: Random) -> None:
        self._explore = explore
        self._rng = rng
        self._arms = range(num_arms)
        self._log_weights = [0.0] * num_arms
        self._chances = [1.0 / num_arms] * num_arms
        self._most = 0.0

    def pick(self) -> int:
        """Draw the next arm."""
        return self._rng.choices(self._arms, self._chances)[0]

    def reward(self, arm: int, tokens: float, seconds: float) -> None:
        """What a round of the arm brought and took; rewards are in parts of the largest so far.

        The chance is that of now, not of when the arm was drawn: with one request they are the same.
        """
        rate = tokens / seconds
        self._most = max(self._most, rate)
        count = len(self._arms)
        self._log_weights[arm] += self._explore * rate / (self._most * self._chances[arm] * count)
        top = max(self._log_weights)
        weights = [exp(weight - top) for weight in self._log_weights]
        total = sum(weights)
        even = self._explore / count
        self._chances = [(1.0 - self._explore) * weight / total + even for weight in weights]
