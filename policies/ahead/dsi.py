"""DSI, distributed speculative inference: the draft never waits for a verdict.

Timor et al. 2024 (arXiv:2405.14105). The drafter writes on whatever the target is doing, and each `lookahead` tokens a
target server judges them. The lookahead is the least one at which their number of servers keeps up (their equation 1):
ceil(target_s / (lookahead draft_s)) <= servers.

Where we differ: one request has one target here, so `servers` is 1, and the lookahead is the least number of tokens
that takes at least the target's time. Steps end together, as everything does here, so what the drafter has written when
the verdict is in is the lookahead, not more.
"""

from math import ceil

from ..about import About
from ..parts.default_members import A_DRAFTER
from .pearl import Pearl


class Dsi(Pearl):
    """Two levels; the least lookahead with which one target keeps up. Options as of `Pearl`."""

    about = About(paper="DSI, arXiv:2405.14105", lossless=True, members=A_DRAFTER, works_ahead=True)

    def fitting(self, ratio: float) -> int:
        """The least window that takes as long as the target, 1 to `most`."""
        return min(max(ceil(ratio), 1), self._most)
