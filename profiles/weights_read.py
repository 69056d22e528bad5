"""When the weights of each member were read last."""

from collections.abc import Mapping
from math import inf


class WeightsRead:
    """Mutated by `note`.

    Args:
        shares: by member, the share of its weights that each other member reads as well.
    """

    def __init__(self, shares: Mapping[str, Mapping[str, float]]) -> None:
        self._shares = shares
        self._read_at_s: dict[str, float] = {}

    def note(self, member: str, now_s: float) -> None:
        """A forward of the member is done."""
        self._read_at_s[member] = now_s

    def away(self, member: str, now_s: float) -> list[tuple[float, float]]:
        """Shares of a member's weights, 1 in all, and how many seconds ago each was read; infinite for never.

        Of two others that read parts of them, the smaller part is taken for one of the larger.
        """
        own_s = self._since(member, now_s)
        shares = self._shares.get(member, {})
        others = sorted((self._since(other, now_s), share) for other, share in shares.items())
        parts, covered = [], 0.0
        for away_s, share in others:
            if away_s < own_s and share > covered:
                parts.append((share - covered, away_s))
                covered = share
        return [*parts, (1.0 - covered, own_s)]

    def _since(self, member: str, now_s: float) -> float:
        return now_s - self._read_at_s.get(member, -inf)
