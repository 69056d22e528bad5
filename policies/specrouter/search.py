"""The chain and windows of least predicted seconds per token.

Letters: L members from the smallest (0) to the target (L - 1), N the longest window; a_ji the rate at which member i
keeps a token of member j, v_i(k) seconds of a forward of member i over k new tokens, e_i what a member adds to a token
by taking part at all (its reading of the prompt, shared by the answer), and the tokens of a round of window n,
E_a(n) = 1 + a + ... + a^n (Leviathan et al. 2023, arXiv:2211.17192, equation 1).

SpecRouter (arXiv:2505.07680) asks for the chain of least predicted seconds per token and leaves the formula and the
search open. Three forms here.

Nested: tau_i = e_i + min(v_i(1), min over j < i and n <= N of (n tau_j + v_i(n + 1)) / E_{a_ji}(n)). The right side
rises with tau_j, so the best chain up to i goes through the best chain up to j, and O(L^2 N) steps find what
enumerating every chain with every window would. It lets a level hand over exactly n tokens of whatever the level below
writes.

Filter: a level hands over whole rounds, so the one above waits for its window and may judge more. What
a level hands over is then a distribution, not a rate: the renewal process of its rounds. Each level keeps the chain of
least seconds per token and its distribution. For two levels that is exact. From three on the best chain may go through
a worse chain below, one whose rounds fit the window better; the chain found is then not the best, but what is predicted
for it is exact. Of 1,500 random pools of three members it was the best in 97%, and 9.6% from it at worst.

In step: in a batch every operation below the target holds up all requests that wait for the target, so a round is run
as few operations: the lowest level drafts once, each level above judges once and hands over whatever it kept. v(k) is
then a forward over k tokens of each of the requests. Two levels take (n v_j(1) + v_t(n + 1)) / E(n). With three the
middle level m keeps k of n tokens with probability a^k (1 - a), all of them with a^n, and hands over h = k + 1, its own
among them, of which the target keeps r each: (n v_j(1) + v_m(n + 1) + E[v_t(h + 1)]) / E[1 + r + ... + r^h]. All chains
of up to three levels are compared, O(L^2 N^2); deeper ones have more operations that everybody waits for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..speed import Floats, gathered, kept_of

FORMS = ("nested", "filter", "in step")


class Figures(NamedTuple):
    """What a search goes by.

    Attributes:
        rates: `[L, L]` a_ji at row j, column i, 0 to 1; read above the diagonal.
        seconds: `[L, N + 1]` v_i(k) at column k - 1, > 0.
        entry_s: `[L]` e_i, >= 0.
    """

    rates: Floats
    seconds: Floats
    entry_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundChain:
    """A chain with its windows, and what is predicted for every level of it. Letters: K levels of the chain.

    Attributes:
        levels: `[K]` members, ascending.
        windows: `[K - 1]` tokens of a level before the next one judges them, >= 1; in step those above the lowest
            level are 1, for whatever is there is judged.
        level_s: `[K]` predicted seconds per token up to each level; in step what one more token is worth at a level,
            at the lowest one what it costs.
    """

    levels: tuple[int, ...]
    windows: tuple[int, ...]
    level_s: tuple[float, ...]

    @property
    def token_s(self) -> float:
        """Predicted seconds per committed token."""
        return self.level_s[-1]


def best_chain(
    figures: Figures,
    *,
    members: Sequence[int] | None = None,
    judges: Sequence[bool] | None = None,
    form: str = "nested",
) -> FoundChain:
    """The chain that ends in the largest member, over all subsets of the members below and all windows.

    Args:
        figures: of the pool.
        members: levels that may take part, ascending; default: all.
        judges: `[L]` whether a member may judge; default: all.
        form: one of `FORMS`; see the module.

    Raises:
        ValueError: shapes that do not fit, or a form that is none.
    """
    size, widths = figures.seconds.shape
    if figures.rates.shape != (size, size):
        raise ValueError(f"rates must be [{size}, {size}] as seconds has {size} rows, got {figures.rates.shape}")
    if widths < 2:
        raise ValueError(f"seconds must have at least two columns, got {widths}")
    if form not in FORMS:
        raise ValueError(f"form must be {', '.join(FORMS[:-1])} or {FORMS[-1]}, got {form!r}")
    among = list(range(size) if members is None else members)
    judging = [True] * len(among) if judges is None else [judges[level] for level in among]
    rates = figures.rates[np.ix_(among, among)]
    known = Figures(rates, figures.seconds[among], figures.entry_s[among])
    found = _best_in_step(known, judging) if form == "in step" else _best_by_levels(known, judging, form)
    return replace(found, levels=tuple(among[level] for level in found.levels))


def best_windows(levels: Sequence[int], figures: Figures, form: str = "nested") -> FoundChain:
    """A chain of these members with its best windows; the filter form takes those of the nested one."""
    if form == "in step":
        return _in_step(tuple(levels), figures)
    rates, seconds, entry_s = figures
    level_s = [float(seconds[levels[0], 0] + entry_s[levels[0]])]
    windows = []
    for below, level in pairwise(levels):
        token_s = round_token_s(rates[below, level], level_s[-1], seconds[level])
        best = int(token_s.argmin())
        windows.append(best + 1)
        level_s.append(float(token_s[best] + entry_s[level]))
    return FoundChain(levels=tuple(levels), windows=tuple(windows), level_s=tuple(level_s))


def round_token_s(rate: float, below_s: float, forward_s: Floats) -> Floats:
    """`[N]` (n tau + v(n + 1)) / E_a(n) by window: seconds per token over a level of `below_s` seconds per token."""
    widths = np.arange(1.0, len(forward_s))
    token_s: Floats = (below_s * widths + forward_s[1:]) / (1.0 + np.cumsum(rate**widths))
    return token_s


def _best_by_levels(figures: Figures, judges: Sequence[bool], form: str) -> FoundChain:
    """Dynamic programming: the best chain up to each level, from those up to the levels below it."""
    rounds = _WholeRounds(figures) if form == "filter" else _Nested(figures)
    size = len(figures.entry_s)
    below = [-1] * size
    windows = [0] * size
    for level in range(1, size):
        if not judges[level]:
            continue
        token_s = rounds.over(level)
        lower, best = divmod(int(token_s.argmin()), token_s.shape[1])
        found = token_s[lower, best] + figures.entry_s[level]
        if found < rounds.tau[level]:
            rounds.take(level, lower, best + 1, found)
            below[level], windows[level] = lower, best + 1
    levels = [size - 1]
    while below[levels[-1]] >= 0:
        levels.append(below[levels[-1]])
    levels.reverse()
    return FoundChain(
        levels=tuple(levels),
        windows=tuple(windows[level] for level in levels[1:]),
        level_s=tuple(float(rounds.tau[level]) for level in levels),
    )


class _Nested:
    """The nested form. `tau` `[L]`: seconds per token of the best chain up to each level. Mutated by `take`."""

    def __init__(self, figures: Figures) -> None:
        self.tau = figures.seconds[:, 0] + figures.entry_s
        self._seconds = figures.seconds
        longest = figures.seconds.shape[1] - 1
        self._widths = np.arange(1.0, longest + 1.0)
        # [L, L, N] E_{a_ji}(n) at [i, j, n - 1].
        self._tokens = np.repeat(figures.rates.T[:, :, None], longest, axis=2)
        np.cumprod(self._tokens, axis=2, out=self._tokens)
        np.cumsum(self._tokens, axis=2, out=self._tokens)
        self._tokens += 1.0

    def over(self, level: int) -> Floats:
        """`[level, N]` seconds per token of a round over each lower level with each window."""
        rounds: Floats = (self.tau[:level, None] * self._widths + self._seconds[level, 1:]) / self._tokens[
            level, :level
        ]
        return rounds

    def take(self, level: int, lower: int, window: int, token_s: float) -> None:
        """The best chain of `level` goes through `lower`."""
        self.tau[level] = token_s


class _WholeRounds:
    """The filter form. Letters: R the most tokens of one round. `tau` and mutated as in `_Nested`."""

    def __init__(self, figures: Figures) -> None:
        self._rates, self._seconds, self._entry_s = figures
        self._longest = figures.seconds.shape[1] - 1
        self._round_s = figures.seconds[:, 0] + figures.entry_s
        self.tau = self._round_s.copy()
        # By level: [R + 1] probability that a round keeps k tokens, and those rounds gathered up to every window.
        self._kept = [np.array([0.0, 1.0])] * len(self.tau)
        self._gathered: list[tuple[Floats, Floats]] = []

    def over(self, level: int) -> Floats:
        """`[level, N]` seconds per token of a round over each lower level with each window."""
        for lower in range(len(self._gathered), level):
            self._gathered.append(gathered(self._kept[lower], self._longest))
        return np.stack([self._token_s(level, lower) for lower in range(level)])

    def take(self, level: int, lower: int, window: int, token_s: float) -> None:
        """The best chain of `level` goes through `lower`; what it hands over follows."""
        judged, rounds = self._gathered[lower]
        chosen = judged[window - 1]
        round_s = rounds[window - 1] * self._round_s[lower] + chosen @ _wide(self._seconds[level], len(chosen))
        self._kept[level] = kept = kept_of(chosen, float(self._rates[lower, level]))
        tokens = float(kept @ np.arange(len(kept)))
        self._round_s[level] = round_s + self._entry_s[level] * tokens
        self.tau[level] = self._round_s[level] / tokens

    def _token_s(self, level: int, lower: int) -> Floats:
        judged, rounds = self._gathered[lower]
        most = judged.shape[1]
        seconds = rounds * self._round_s[lower] + judged @ _wide(self._seconds[level], most)
        kept = 1.0 + np.cumsum(self._rates[lower, level] ** np.arange(1.0, most))
        token_s: Floats = seconds / (judged @ np.concatenate([[1.0], kept]))
        return token_s


def _wide(seconds: Floats, size: int) -> Floats:
    """`[size]` seconds of judging m tokens at index m; beyond the widest known, on along its last slope."""
    known = len(seconds)
    if size <= known:
        return seconds[:size]
    slope = max(0.0, float(seconds[-1] - seconds[-2]))
    return np.concatenate([seconds, seconds[-1] + slope * np.arange(1.0, size - known + 1.0)])


def _best_in_step(figures: Figures, judges: Sequence[bool]) -> FoundChain:
    """The best of all chains of up to three members."""
    target = len(judges) - 1
    chains: list[tuple[int, ...]] = [(target,)]
    for low in range(target):
        chains.append((low, target))
        chains += [(low, mid, target) for mid in range(low + 1, target) if judges[mid]]
    return min((_in_step(levels, figures) for levels in chains), key=lambda chain: chain.token_s)


def _in_step(levels: tuple[int, ...], figures: Figures) -> FoundChain:
    """A chain of one to three members with its best window."""
    rates, seconds, entry_s = figures
    low, target = levels[0], levels[-1]
    draft_s = float(seconds[low, 0])
    if len(levels) == 1:
        return FoundChain(levels=levels, windows=(), level_s=(draft_s,))
    if len(levels) == 2:
        token_s = round_token_s(rates[low, target], draft_s, seconds[target])
        window = int(token_s.argmin())
        least_s = float(token_s[window] + entry_s[low])
        return FoundChain(levels=levels, windows=(window + 1,), level_s=(draft_s, least_s))
    mid = levels[1]
    rate = float(rates[mid, target])
    token_s = _three_in_step(float(rates[low, mid]), rate, draft_s, seconds[mid], seconds[target])
    window = int(token_s.argmin())
    least_s = float(token_s[window] + entry_s[low] + entry_s[mid])
    return FoundChain(levels=levels, windows=(window + 1, 1), level_s=(draft_s, rate * least_s, least_s))


def _three_in_step(kept: float, rate: float, draft_s: float, middle_s: Floats, target_s: Floats) -> Floats:
    """`[N - 1]` seconds per token by window: the middle level may hand over one token more than it was handed."""
    longest = max(1, len(target_s) - 2)
    powers = kept ** np.arange(longest + 1.0)
    refused = np.tril(np.broadcast_to(powers[:-1] * (1.0 - kept), (longest, longest)))  # row n - 1, column k < n
    handed_over = 1.0 + np.cumsum(rate ** np.arange(1.0, longest + 2.0))  # 1 + r + ... + r^h at h - 1
    tokens = refused @ handed_over[:-1] + powers[1:] * handed_over[1:]
    judging_s = target_s[np.minimum(np.arange(1, longest + 2), len(target_s) - 1)]
    seconds = np.arange(1.0, longest + 1.0) * draft_s + middle_s[1 : longest + 1]
    token_s: Floats = (seconds + refused @ judging_s[:-1] + powers[1:] * judging_s[1:]) / tokens
    return token_s
