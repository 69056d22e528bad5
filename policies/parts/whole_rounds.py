"""Seconds per token of chains in which every level hands over whole rounds, which may exceed the window above it.

What a level hands over is then a distribution, not a rate: the renewal process of its rounds (`speed.gathered`).

Letters: L members, N the longest window, R the most tokens of one round.
"""

from typing import NamedTuple

import numpy as np

from ..speed import Floats, gathered, kept_of


class Below(NamedTuple):
    """What a level goes through.

    Attributes:
        token_s: seconds per token, what the level adds by taking part not among them.
        lower: the level below it; -1 of none.
        window: over that, >= 1; 0 of none.
    """

    token_s: float
    lower: int
    window: int


class WholeRounds:
    """Chains whose levels hand over whole rounds, built from below: one for every level. Mutated by `take`.

    Args:
        rates: `[L, L]` at which the member of the column keeps a token of the row's, 0 to 1; read above the diagonal.
        seconds: `[L, N + 1]` of a forward over k new tokens at column k - 1, > 0.
        entry_s: `[L]` what a member adds to a token by taking part at all, >= 0.

    Attributes:
        tau: `[L]` seconds per token of the best chain up to each level.
    """

    def __init__(self, rates: Floats, seconds: Floats, entry_s: Floats) -> None:
        self._rates, self._seconds, self._entry_s = rates, seconds, entry_s.tolist()
        self._longest = seconds.shape[1] - 1
        self.tau: list[float] = (seconds[:, 0] + entry_s).tolist()
        # Of levels that were taken for, the one below and the window. All others write one token at a time.
        self._through: dict[int, Below] = {}
        self._most = [1] * len(self.tau)
        # Made where a level is asked for: most are in no chain that comes near the best.
        self._kept: dict[int, tuple[Floats, float]] = {}
        self._gathered: dict[int, tuple[Floats, Floats]] = {}

    def most(self, level: int) -> int:
        """R of a level's rounds: 1 of one that nothing was taken for, which hands over exactly what it is asked."""
        return self._most[level]

    def over(self, level: int, lower: int) -> Floats:
        """`[N]` seconds per token of a round of `level` over the chain of `lower` with each window."""
        judged, rounds_s = self._up_to_windows(lower)
        most = judged.shape[1]
        # [N + R, 2] seconds of judging m tokens, and tokens that are kept of them.
        worth = np.empty((most, 2))
        worth[:, 0] = _wide(self._seconds[level], most)
        np.cumsum(self._rates[lower, level] ** np.arange(most), out=worth[:, 1])
        found = judged @ worth
        token_s: Floats = (rounds_s + found[:, 0]) / found[:, 1]
        return token_s

    def take(self, level: int, below: Below) -> None:
        """The best chain of `level` goes through the one of a level below."""
        self._through[level] = below
        # A round that reaches the window begins before it, and the level adds a token of its own.
        self._most[level] = below.window + self._most[below.lower]
        self.tau[level] = below.token_s + self._entry_s[level]

    def _up_to_windows(self, lower: int) -> tuple[Floats, Floats]:
        """Of a level that was taken for: `[N, N + R]` as `gathered`, and `[N]` seconds until each window is reached."""
        if lower not in self._gathered:
            kept, round_s = self._rounds_of(lower)
            judged, rounds = gathered(kept, self._longest)
            self._gathered[lower] = judged, rounds * round_s
        return self._gathered[lower]

    def _rounds_of(self, level: int) -> tuple[Floats, float]:
        """Of a level that was taken for: `[R + 1]` probability that a round keeps k tokens, and seconds of a round."""
        if level not in self._kept:
            _, lower, window = self._through[level]
            if lower in self._through:
                judged = self._up_to_windows(lower)[0][window - 1, : self._most[level]]
            else:
                judged = np.zeros(window + 1)
                judged[window] = 1.0
            kept = kept_of(judged, float(self._rates[lower, level]))
            self._kept[level] = kept, self.tau[level] * float(kept @ np.arange(len(kept)))
        return self._kept[level]


def _wide(seconds: Floats, size: int) -> Floats:
    """`[size]` seconds of judging m tokens at index m; beyond the widest known, on along its last slope."""
    known = len(seconds)
    if size <= known:
        return seconds[:size]
    slope = max(0.0, float(seconds[-1] - seconds[-2]))
    return np.concatenate([seconds, seconds[-1] + slope * np.arange(1.0, size - known + 1.0)])
