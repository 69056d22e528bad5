"""How often a drafted token is kept, as a running rate that forgets."""

from ...arguments import check_least
from ...decoding.contract import Outcome


class RunningRatio:
    """One sum over another, recent rounds with more weight.

    Args:
        memory: rounds that it reaches back, >= 1.
        above, below: the sums before anything is noted; at 0 there is no rate until then.

    Attributes:
        num_rounds: that were noted.

    Raises:
        ValueError: `memory` below 1.
    """

    __slots__ = ("_above", "_below", "_kept", "num_rounds")

    def __init__(self, *, memory: int, above: float = 0.0, below: float = 0.0) -> None:
        check_least("memory", memory, 1)
        self._kept = 1.0 - 1.0 / memory
        self._above, self._below = above, below
        self.num_rounds = 0

    def note(self, above: float, below: float) -> None:
        """Take in what one round adds to either sum."""
        self._above = self._kept * self._above + above
        self._below = self._kept * self._below + below
        self.num_rounds += 1

    @property
    def rate(self) -> float:
        """The ratio now."""
        return self._above / self._below


def acceptance_rate(*, memory: int) -> RunningRatio:
    """Tokens kept over tokens judged up to and including the first refused one, 0 to 1; arguments as of `RunningRatio`.

    What follows a refused token was never judged on its own, so it is not counted. Before anything was seen the rate is
    one half, which weighs as much as two tokens.
    """
    return RunningRatio(memory=memory, above=1.0, below=2.0)


def judged(outcome: Outcome) -> tuple[int, int]:
    """What a verification adds to either sum of such a rate."""
    return outcome.num_accepted, outcome.num_accepted + (outcome.refused_at is not None)
