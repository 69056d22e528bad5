"""Holds a lossy policy to a stated rate of divergences, by letting the target check some of its blocks.

A divergence is a committed token that the target, reading the same text, would not have written. (Tables count
positions that differ from the target's own text; after one divergence the texts may part for good, so that count says
nothing of how often a policy errs.) Letters: h divergences per token of blocks that nobody checks, c the share of
blocks that are checked, b the budget per token.
"""

LEAST_SHARE = 1 / 8
STRICTEST = 1.0  # up to here thresholds tighten, from here to 2 checks become more frequent
GAIN = 0.4


class DivergenceBudget:
    """A controller of one number, strictness, from 0 (the policy's own thresholds) to 2 (every block is checked).

    A checked block commits no divergence and shows how many an unchecked one would have. A check that looks at n of L
    tokens (a verifier stops at the first divergence) and finds d = 0 or 1 stands for 1 / c blocks: in the mean, if all
    is scaled by n / L, for d (1 - c) divergences on n ((1 - c) + c n / L) committed tokens. So strictness moves by
    GAIN x (LEAST_SHARE / c) x (d (1 - c) - b n ((1 - c) + c n / L)), which is 0 in the mean where the budget is met.

    Strictness up to 1 tightens thresholds at c = 1 / 8. What these cannot reach (a token that the middle verifier is
    sure of, and wrong) is left to c, which goes from 1 / 8 to 1 between 1 and 2. So every budget can be held, at the
    price of plain speculation with a slim pass on top at worst.

    Args:
        per_thousand: divergences per 1,000 tokens, above 0 to 1,000.

    Raises:
        ValueError: a budget out of range.
    """

    __slots__ = ("_budget", "_credit", "strictness")

    def __init__(self, per_thousand: float) -> None:
        if not 0.0 < per_thousand <= 1000.0:
            raise ValueError(f"budget must be in (0, 1000] divergences per 1,000 tokens, got {per_thousand!r}")
        self._budget = per_thousand / 1000.0
        self._credit = 0.0
        self.strictness = STRICTEST

    @property
    def share(self) -> float:
        """Share of blocks that are checked, 1 / 8 to 1."""
        excess = self.strictness - STRICTEST
        return LEAST_SHARE + (1.0 - LEAST_SHARE) * excess if excess > 0.0 else LEAST_SHARE

    def is_due(self) -> bool:
        """Whether the block at hand is to be checked; to be asked once a block."""
        self._credit += self.share
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True

    def note_check(self, num_tokens: int, num_looked_at: int, num_divergent: int) -> None:
        """Take in a checked block.

        Args:
            num_tokens: that would have been committed unchecked, >= 1.
            num_looked_at: of those, up to and including the first divergence.
            num_divergent: 1 if there was one, else 0.
        """
        share = self.share
        committed = num_looked_at * (1.0 - share + share * num_looked_at / num_tokens)
        error = (1.0 - share) * num_divergent - self._budget * committed
        moved = self.strictness + GAIN * LEAST_SHARE / share * error
        self.strictness = min(max(moved, 0.0), STRICTEST + 1.0)
