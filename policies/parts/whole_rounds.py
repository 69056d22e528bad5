"""Seconds per token of chains in which every level hands over whole rounds, which may exceed the window above it.

What a level hands over is then a distribution, not a rate: the renewal process of its rounds (`speed.gathered`).

Letters: L members, N the longest window, J lower levels, R the most tokens of one round.
"""

from collections.abc import Sequence

import numpy as np

from ..speed import Floats, gathered, kept_of


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
        self._rates, self._seconds, self._entry_s = rates, seconds, entry_s
        self._longest = seconds.shape[1] - 1
        self._round_s: list[float] = (seconds[:, 0] + entry_s).tolist()
        self.tau = self._round_s.copy()
        # By level: [R + 1] probability that a round keeps k tokens, and those rounds gathered up to every window.
        self._kept = [np.array([0.0, 1.0])] * len(self.tau)
        self._gathered: dict[int, tuple[Floats, Floats]] = {}

    def over(self, level: int, lower: Sequence[int]) -> Floats:
        """`[J, N]` seconds per token of a round over each of these levels with each window."""
        for below in lower:
            if below not in self._gathered:
                self._gathered[below] = gathered(self._kept[below], self._longest)
        judged = [self._gathered[below][0] for below in lower]
        most = max(table.shape[1] for table in judged)
        powers = self._rates[list(lower), level][:, None] ** np.arange(most)
        # [J, R, 2] seconds of judging m tokens, and tokens that are kept of them.
        worth = np.empty((len(lower), most, 2))
        worth[:, :, 0] = _wide(self._seconds[level], most)
        np.cumsum(powers, axis=1, out=worth[:, :, 1])
        found = np.stack([table @ worth[index, : table.shape[1]] for index, table in enumerate(judged)])
        round_s = np.array([self._gathered[below][1] * self._round_s[below] for below in lower])
        token_s: Floats = (round_s + found[:, :, 0]) / found[:, :, 1]
        return token_s

    def take(self, level: int, lower: int, window: int) -> None:
        """The best chain of `level` goes through `lower`; what it hands over follows."""
        judged, rounds = self._gathered[lower]
        chosen = judged[window - 1]
        round_s = float(rounds[window - 1]) * self._round_s[lower] + float(
            chosen @ _wide(self._seconds[level], len(chosen))
        )
        self._kept[level] = kept = kept_of(chosen, float(self._rates[lower, level]))
        tokens = float(kept @ np.arange(len(kept)))
        self._round_s[level] = round_s + float(self._entry_s[level]) * tokens
        self.tau[level] = self._round_s[level] / tokens


def _wide(seconds: Floats, size: int) -> Floats:
    """`[size]` seconds of judging m tokens at index m; beyond the widest known, on along its last slope."""
    known = len(seconds)
    if size <= known:
        return seconds[:size]
    slope = max(0.0, float(seconds[-1] - seconds[-2]))
    return np.concatenate([seconds, seconds[-1] + slope * np.arange(1.0, size - known + 1.0)])
