"""How often a drafted token is kept, as a running rate that forgets."""


class AcceptanceRate:
    """Tokens kept over tokens judged up to and including the first refused one, recent rounds with more weight.

    What follows a refused token was never judged on its own, so it is not counted.

    Args:
        memory: rounds that the rate reaches back, >= 1.
        prior: the rate before anything was seen, 0 to 1; it weighs as much as two tokens.

    Raises:
        ValueError: `memory` below 1, or a prior out of range.
    """

    __slots__ = ("_asked", "_kept", "_taken")

    def __init__(self, *, memory: int, prior: float = 0.5) -> None:
        if memory < 1:
            raise ValueError(f"memory must be >= 1, got {memory}")
        if not 0.0 <= prior <= 1.0:
            raise ValueError(f"prior must be in [0, 1], got {prior!r}")
        self._kept = 1.0 - 1.0 / memory
        self._asked = 2.0
        self._taken = 2.0 * prior

    def note(self, num_taken: int, num_asked: int) -> None:
        """Take in one round: of `num_asked` >= 0 tokens, `num_taken` stayed."""
        self._asked = self._kept * self._asked + num_asked
        self._taken = self._kept * self._taken + num_taken

    @property
    def rate(self) -> float:
        """0 to 1."""
        return self._taken / self._asked
