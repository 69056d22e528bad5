"""What chains took, against what is predicted for them."""

from math import sqrt

from ..constants import RouterConstants

Way = tuple[int, ...]  # members


class Played:
    """Seconds that chains took over seconds predicted, by members. Mutated by `note`.

    The prediction takes tokens as independent and all alike, and windows as fixed. Where they are not, and where
    windows stop token by token, it is off by a factor that depends on the members of a chain more than on the text. So
    it is learnt from rounds of all tags. As rounds differ in their tokens far more than in their seconds, rounds that
    agree with the prediction are added in units of seconds that rounds took.

    Args:
        constants: of the policy.
    """

    def __init__(self, constants: RouterConstants) -> None:
        self._constants = constants
        self._sums: dict[Way, tuple[float, float, float]] = {}

    def note(self, way: Way, *, predicted_s: float, seconds: float, num_rounds: int) -> None:
        """Take in rounds: what their tokens are predicted to take, now that their verdicts are known, and took."""
        rounds, predicted, taken = self._sums.get(way, (0.0, 0.0, 0.0))
        kept = (1.0 - 1.0 / self._constants.played_memory) ** num_rounds
        self._sums[way] = (kept * rounds + num_rounds, kept * predicted + predicted_s, kept * taken + seconds)

    def chains(self) -> list[tuple[int, ...]]:
        """Members that were played."""
        return list(self._sums)

    def ratio(self, way: Way) -> float:
        """Seconds taken over seconds predicted, > 0; 1 for what was never played."""
        rounds, predicted, taken = self._sums.get(way, (0.0, 0.0, 0.0))
        if not rounds:
            return 1.0
        prior = self._constants.model_rounds * taken / rounds
        return (taken + prior) / (predicted + prior)

    def hopeful(self, way: Way) -> float:
        """The same less its error, which shrinks as rounds are played; decoding alone is known as it is."""
        if len(way) == 1:
            return 1.0
        rounds, weight = self._sums.get(way, (0.0,))[0], self._constants.model_rounds
        return self.ratio(way) * (1.0 - self._constants.model_error * sqrt(weight / (weight + rounds)))
