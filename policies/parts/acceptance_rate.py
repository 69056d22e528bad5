"""How often a drafted token is kept, as a running rate that forgets."""

from ...arguments import check_least
from ...decoding.contract import Outcome


class RunningRatio:
    """One sum over another, recent rounds with more weight.

    Args:
        memory: rounds that it reaches back, >= 1.

    Attributes:
        num_rounds: that were noted.

    Raises:
        ValueError: `memory` below 1.
    """

    __slots__ = ("_above", "_below", "_kept", "num_rounds")

    def __init__(self, *, memory: int) -> None:
        check_least("memory", memory, 1)
        self._kept = 1.0 - 1.0 / memory
        self._above = self._below = 0.0
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


class AcceptanceRate(RunningRatio):
    """Tokens kept over tokens judged up to and including the first refused one, 0 to 1.

    What follows a refused token was never judged on its own, so it is not counted. Before anything was seen the rate is
    one half, which weighs as much as two tokens.
    """

    __slots__ = ()

    def __init__(self, *, memory: int) -> None:
        super().__init__(memory=memory)
        self._above, self._below = 1.0, 2.0

    def note_judged(self, outcome: Outcome) -> None:
        """Take in what a verification said."""
        self.note(outcome.num_accepted, outcome.num_accepted + (outcome.refused_at is not None))
