"""How often a drafted token is kept, as a running rate that forgets."""


class AcceptanceRate:
    """Tokens kept over tokens judged up to and including the first refused one, recent rounds with more weight.

    What follows a refused token was never judged on its own, so it is not counted. Before anything was seen the rate is
    one half, which weighs as much as two tokens.

    Args:
        memory: rounds that the rate reaches back, >= 1.

    Raises:
        ValueError: `memory` below 1.
    """

    __slots__ = ("_asked", "_kept", "_taken")

    def __init__(self, *, memory: int) -> None:
        if memory < 1:
            raise ValueError(f"memory must be >= 1, got {memory}")
        self._kept = 1.0 - 1.0 / memory
        self._asked = 2.0
        self._taken = 1.0

    def note(self, num_taken: int, num_asked: int) -> None:
        """Take in one round: of `num_asked` >= 0 tokens, `num_taken` stayed."""
        self._asked = self._kept * self._asked + num_asked
        self._taken = self._kept * self._taken + num_taken

    @property
    def rate(self) -> float:
        """0 to 1."""
        return self._taken / self._asked
