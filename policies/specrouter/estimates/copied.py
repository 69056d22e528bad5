"""How likely a copied token is right, by how long a piece of text matches before it and how surely it followed.

Every token of an answer tells of what would have been copied there, whether or not anything was: so nothing is
played to learn.
"""

from ..constants import RouterConstants

LENGTHS = 6  # of matches, told apart by powers of two: 1, 2 to 3, 4 to 7, ...; the last one is of all longer ones
SHARES = 5  # kinds of what followed: once, and another thing never; always; for the most part; mostly; sometimes
MOSTLY, MOST = 0.5, 0.75
OWN, EARLIER = 0, 1  # text of the request itself, or answers of others

Rates = list[list[float]]  # `[2 * LENGTHS * SHARES]` rate, and tokens that it rests on


class CopiedTokens:
    """Rates by tag. Mutated by `note`.

    Args:
        constants: of the policy.
    """

    def __init__(self, constants: RouterConstants) -> None:
        self._memory, self._shared = constants.copy_memory, constants.copy_tokens
        of_shares = (1.0, 1.0, 0.875, 0.5, 0.25)
        rates = [
            share * (1.0 - constants.copy_risk / 2.0**length)
            for _ in (OWN, EARLIER)
            for length in range(LENGTHS)
            for share in of_shares
        ]
        self._all = [rates, [constants.copy_tokens] * len(rates)]
        self._by_tag: dict[str, Rates] = {}

    def rates(self, tag: str) -> list[float]:
        """By cell, 0 to 1; those of a tag start from those of all."""
        return self._of(tag)[0]

    def note(self, tag: str, cell: int, *, kept: bool) -> None:
        """Take in whether a token was right that followed what was right before it."""
        for rates, tokens in (self._of(tag), self._all):
            weight = tokens[cell] + 1.0
            rates[cell] += (kept - rates[cell]) / weight
            if weight <= self._memory:
                tokens[cell] = weight

    def _of(self, tag: str) -> Rates:
        own = self._by_tag.get(tag)
        if own is None:
            rates = self._all[0]
            own = self._by_tag[tag] = [rates.copy(), [self._shared] * len(rates)]
        return own


def cell_of(source: int, length: int, share: float, count: int) -> int:
    """The cell of a token after a match.

    Args:
        source: `OWN` or `EARLIER`.
        length: tokens that match, >= 1.
        share: of it among all that followed, above 0 to 1.
        count: how often it followed, >= 1.
    """
    kind = (0 if count == 1 else 1) if share == 1.0 else 2 if share >= MOST else 3 if share >= MOSTLY else 4
    return (source * LENGTHS + min(length.bit_length(), LENGTHS) - 1) * SHARES + kind
