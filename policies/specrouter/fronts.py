"""What a lookup is worth to a chain, and where it stands: before the lowest member, below it, or nowhere.

A lookup takes c seconds whether it finds something or not, finds something with probability h, and what it copies is
kept as its pair's rate says. Letters: v(k) seconds of a forward of the level that judges the copy, E(n) tokens of a
round of n copied ones, tau seconds per token.

Before: the level above the lowest one judges copies, and the lowest one drafts where nothing was found. A round of that
level then takes c + h v(n + 1) + (1 - h) E tau for h E(n) + (1 - h) E tokens, E and tau those of its rounds without.
Below: the lowest member judges copies in one forward, in place of as many of its own, and writes a token where nothing
was found: (c + h v(n + 1) + (1 - h) v(1)) / (h E(n) + 1 - h) seconds per token at its level. The levels above are as
they were. So a lookup is compared by seconds per token, as any member of a chain is.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ..speed import Floats
from .estimates.lookups import Lookups
from .search import Figures, FoundChain, best_windows


class Use(IntEnum):
    """Where lookups stand in a chain."""

    nowhere = 0
    before = 1
    below = 2


class Fronted(NamedTuple):
    """A chain and how it uses lookups.

    Attributes:
        chain: members, windows and predicted seconds, those of lookups among them.
        use: of lookups.
        window: tokens that are copied at most; 0 where nothing is.
    """

    chain: FoundChain
    use: Use
    window: int


class Fronts:
    """Weighs lookups.

    Args:
        front: level of the member that copies; -1 for none.
        judges: `[L]` whether a member may judge.
        lookups: what is known of them.
    """

    def __init__(self, front: int, judges: list[bool], lookups: Lookups) -> None:
        self._front, self._judges, self._lookups = front, judges, lookups

    def ways(self, tag: str, levels: tuple[int, ...], figures: Figures, errors: float) -> list[Fronted]:
        """Members with every use of lookups, each with its best windows.

        Args:
            tag: of the requests.
            levels: of the chain.
            figures: to go by.
            errors: standard errors by which the rate of finding something is raised.
        """
        bare = best_windows(levels, figures)
        if self._front < 0:
            return [Fronted(bare, Use.nowhere, 0)]
        found = self._lookups.rate(tag, errors)
        ways = [Fronted(bare, Use.nowhere, 0), self._before(bare, figures, found)]
        if len(levels) > 1 and self._judges[levels[0]]:
            ways.append(self._below(levels, figures, found))
        return ways

    def _before(self, bare: FoundChain, figures: Figures, found: float) -> Fronted:
        levels, above = bare.levels, bare.levels[min(1, len(bare.levels) - 1)]
        token_s = bare.level_s[min(1, len(levels) - 1)]
        usual = 1.0
        if bare.windows:
            usual = float(np.sum(figures.rates[levels[0], above] ** np.arange(bare.windows[0] + 1.0)))
        tokens, forward_s = self._copied(above, figures)
        window = int((tokens * token_s - forward_s).argmax())
        round_s = self._lookups.seconds + found * forward_s[window] + (1.0 - found) * usual * token_s
        own_s = float(round_s / (found * tokens[window] + (1.0 - found) * usual))
        upper = best_windows(levels[1:] or levels, _with(figures, above, own_s))
        chain = FoundChain(
            levels=levels,
            windows=bare.windows[:1] + upper.windows,
            level_s=bare.level_s[: len(levels) - len(upper.levels)] + upper.level_s,
        )
        return Fronted(chain, Use.before, window + 1)

    def _below(self, levels: tuple[int, ...], figures: Figures, found: float) -> Fronted:
        low = levels[0]
        tokens, forward_s = self._copied(low, figures)
        own_s = (self._lookups.seconds + found * forward_s + (1.0 - found) * figures.seconds[low, 0]) / (
            found * tokens + 1.0 - found
        )
        window = int(own_s.argmin())
        chain = best_windows(levels, _with(figures, low, float(own_s[window])))
        return Fronted(chain, Use.below, window + 1)

    def _copied(self, judge: int, figures: Figures) -> tuple[Floats, Floats]:
        """`[N]` tokens of a round by tokens copied, and seconds of judging them."""
        forward_s = figures.seconds[judge, 1:]
        powers = float(figures.rates[self._front, judge]) ** np.arange(1.0, len(forward_s) + 1.0)
        return 1.0 + np.cumsum(powers), forward_s


def _with(figures: Figures, level: int, token_s: float) -> Figures:
    """The same with other seconds of a token of a level, which is the lowest one then."""
    seconds = figures.seconds.copy()
    seconds[level, 0] = token_s - float(figures.entry_s[level])
    return figures._replace(seconds=seconds)
