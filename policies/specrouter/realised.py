"""What chains took against what was predicted for them.

The prediction takes tokens as independent and all alike, and windows as fixed. Where they are not, and where windows
stop token by token, it is off by a factor that depends on the members of a chain more than on the text: chains of three
levels gain more from stopping early than chains of two. The factor is learnt from rounds of all tags.
"""

MEMORY = 64.0  # rounds that a factor reaches back
PRIOR_WEIGHT = 16.0  # rounds that a factor of one counts for

Levels = tuple[int, ...]


class Realised:
    """Seconds by the members of a chain. Mutated by `note`."""

    def __init__(self) -> None:
        self._sums: dict[Levels, tuple[float, float, float]] = {}

    def note(self, levels: Levels, predicted_s: float, seconds: float) -> None:
        """Take in a round: what its tokens were predicted to take, and took."""
        rounds, predicted, taken = self._sums.get(levels, (0.0, 0.0, 0.0))
        kept = 1.0 - 1.0 / MEMORY
        self._sums[levels] = (kept * rounds + 1.0, kept * predicted + predicted_s, kept * taken + seconds)

    def known(self) -> list[Levels]:
        """Chains that were played."""
        return list(self._sums)

    def ratio(self, levels: Levels) -> float:
        """Seconds taken over seconds predicted, > 0; 1 for a chain that was never played."""
        rounds, predicted, taken = self._sums.get(levels, (0.0, 0.0, 0.0))
        if not rounds:
            return 1.0
        prior = PRIOR_WEIGHT * predicted / rounds
        return (taken + prior) / (predicted + prior)
