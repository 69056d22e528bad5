"""The chain and windows of least predicted seconds per token (SpecRouter, arXiv:2505.07680), in two forms.

Letters: L members from the smallest (0) to the target (L - 1), N the longest window; a_ji the rate at which member i
keeps a token of member j, v_i(k) seconds of a forward of member i over k new tokens, e_i what a member adds to a token
by being used at all (its reading of the prompt, divided by the answer), and the tokens of a round of window n, E_a(n) =
1 + a + ... + a^n (Leviathan et al. 2023, arXiv:2211.17192, equation 1).

Nested: tau_i = e_i + min(v_i(1), min over j < i and n <= N of (n tau_j + v_i(n + 1)) / E_{a_ji}(n)). The right side
rises with tau_j, so the best chain up to i goes through the best chain up to j, and one pass in O(L^2 N) finds the best
of all chains and windows: a *generalised* shortest path, as arXiv:2510.19705 calls its search. A level is
taken to hand over exactly n tokens; a whole round may bring it more.

In step: the lowest level drafts once, each level above judges once and hands over whatever it kept, since every
operation delays all requests. v(k) is a forward over k tokens of each. Two levels take (n v_j(1) + v_t(n + 1)) / E(n).
With three the middle level m keeps k of n tokens with probability a^k (1 - a), all with a^n, and hands over h = k + 1,
of which the target keeps r each: (n v_j(1) + v_m(n + 1) + E[v_t(h + 1)]) / E[1 + r + ... + r^h]. All chains of up to
three levels are compared, O(L^2 N).

The search of a window ends exactly: with s the least seconds per token found so far at this level, from the first n on
at which s a^(n+1) is no more than b (a token of the level below) plus the least step of v, no longer window is better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

from ..about import Floats
from ..estimates import RoundSeconds


class SearchFigures(NamedTuple):
    """Input of a search."""

    rates: Floats  # `[L, L]` a_ji at row j, column i, 0 to 1; read above the diagonal
    seconds: Floats  # `[L, N + 1]` v_i(k) at column k - 1, > 0
    entry_s: Floats  # `[L]` e_i, >= 0
    # share of the requests that draft in a round, 0 to 1; the others copy. In step only, as the next.
    drafting: float = 1.0
    undrafted: float = 1.0  # mean tokens of a request's round, without drafted ones, >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundChain:
    """A chain with its windows, and what is predicted for every level of it. Letters: K levels of the chain."""

    levels: tuple[int, ...]  # `[K]` members, ascending
    # `[K - 1]` tokens of a level before the next one judges them, >= 1; in step those above the lowest level are 1, as
    # they judge all there is
    windows: tuple[int, ...]
    # `[K]` predicted seconds per token up to each level; in step the worth of one more token at a level, at the lowest
    # one its cost
    level_s: tuple[float, ...]

    @property
    def token_s(self) -> float:
        """Predicted seconds per committed token."""
        return self.level_s[-1]


def best_chain(
    figures: SearchFigures,
    *,
    members: Sequence[int] | None = None,
    judges: Sequence[bool] | None = None,
    in_step: bool = False,
) -> FoundChain:
    """The chain that ends in the largest member, over all subsets of the members below and all windows.

    Args:
        figures: of the pool.
        members: levels that may be used, ascending; default: all.
        judges: `[L]` whether a member may judge; default: all.
        in_step: which form is searched; see the module.

    Raises:
        ValueError: shapes that do not fit.
    """
    size, widths = figures.seconds.shape
    if figures.rates.shape != (size, size):
        raise ValueError(f"rates must be [{size}, {size}] as seconds has {size} rows, got {figures.rates.shape}")
    if widths < 2:
        raise ValueError(f"seconds must have at least two columns, got {widths}")
    among = range(size) if members is None else members
    above = [level for level in among if judges is None or judges[level]]
    return (_best_in_step if in_step else _best_nested)(RoundSeconds(*figures), among, above)


def best_windows(levels: Sequence[int], figures: SearchFigures, *, in_step: bool = False) -> FoundChain:
    """A chain of these members with its best windows."""
    known = RoundSeconds(*figures)
    if in_step:
        return _in_step(tuple(levels), known)
    level_s = [known.seconds[levels[0]][0] + known.entry_s[levels[0]]]
    windows = []
    for below, level in pairwise(levels):
        window, token_s = known.round(below, level, level_s[-1], inf)
        windows.append(window)
        level_s.append(token_s + known.entry_s[level])
    return FoundChain(levels=tuple(levels), windows=tuple(windows), level_s=tuple(level_s))


def _best_nested(known: RoundSeconds, among: Sequence[int], judging: Sequence[int]) -> FoundChain:
    """Dynamic programming: the best chain up to each level, from those up to the levels below it."""
    tau = [row[0] + entry_s for row, entry_s in zip(known.seconds, known.entry_s, strict=True)]
    through: dict[int, tuple[int, int]] = {}  # by level, the one below it and the window
    for level in judging:
        entry_s = known.entry_s[level]
        least_s = tau[level] - entry_s
        for lower in among:
            if lower >= level:
                break
            window, token_s = known.round(lower, level, tau[lower], least_s)
            if window:
                least_s, through[level] = token_s, (lower, window)
        tau[level] = least_s + entry_s
    return _chain_of(among[-1], through, tau)


def _chain_of(target: int, through: Mapping[int, tuple[int, int]], tau: Sequence[float]) -> FoundChain:
    levels, windows = [target], list[int]()
    while levels[-1] in through:
        lower, window = through[levels[-1]]
        levels.append(lower)
        windows.append(window)
    levels.reverse()
    windows.reverse()
    return FoundChain(levels=tuple(levels), windows=tuple(windows), level_s=tuple(tau[level] for level in levels))


def _best_in_step(known: RoundSeconds, among: Sequence[int], judging: Sequence[int]) -> FoundChain:
    target = among[-1]
    best = _in_step((target,), known)
    for low in among[:-1]:
        best = _two_in_step(low, target, known, best.token_s) or best
    for mid in judging:
        for low in among:
            if low >= mid or mid == target:
                break
            best = _three_in_step(low, mid, target, known, best.token_s) or best
    return best


def _in_step(levels: tuple[int, ...], known: RoundSeconds) -> FoundChain:
    """A chain of one to three members with its best window."""
    if len(levels) == 1:
        return FoundChain(levels=levels, windows=(), level_s=(known.seconds[levels[0]][0] / known.undrafted,))
    low, mid, target = levels[0], levels[1], levels[-1]
    found = _two_in_step(low, mid, known, inf) if mid == target else _three_in_step(low, mid, target, known, inf)
    assert found is not None
    return found


def _two_in_step(low: int, target: int, known: RoundSeconds, least_s: float) -> FoundChain | None:
    """Two members, if they take less than `least_s` seconds per token."""
    draft_s, entry_s = known.seconds[low][0], known.entry_s[low]
    window, token_s = known.round(low, target, draft_s, least_s - entry_s)
    if not window:
        return None
    return FoundChain(levels=(low, target), windows=(window,), level_s=(draft_s, token_s + entry_s))


def _three_in_step(low: int, mid: int, target: int, known: RoundSeconds, least_s: float) -> FoundChain | None:
    """Three members, if they take less than `least_s` seconds per token.

    The middle level may hand over one token more than it was handed. The n-th drafted token, which it keeps with a^n,
    adds a^n r^(n+1) tokens to a request that drafts, and a^n (v_t(n + 2) - v_t(n + 1)) seconds of the target.
    """
    kept, rate = known.rates[low][mid], known.rates[mid][target]
    draft_s, middle_s, target_s = known.seconds[low][0], known.seconds[mid], known.seconds[target]
    entry_s, widest = known.entry_s[low] + known.entry_s[mid], len(target_s) - 1
    least_s -= entry_s
    added_s = draft_s + known.step_s[mid] + min(known.step_s[target], 0.0)
    window, reached = 0, known.drafting * kept
    more = reached * rate * rate
    seconds, tokens = middle_s[0] + target_s[1], known.undrafted + known.drafting * rate
    for width in range(1, max(1, widest - 1) + 1):
        if least_s * more <= added_s:
            break
        seconds += draft_s + middle_s[width] - middle_s[width - 1]
        seconds += reached * (target_s[min(width + 1, widest)] - target_s[width])
        tokens += more
        reached, more = reached * kept, more * kept * rate
        if seconds < least_s * tokens:
            window, least_s = width, seconds / tokens
    if not window:
        return None
    least_s += entry_s
    return FoundChain(levels=(low, mid, target), windows=(window, 1), level_s=(draft_s, rate * least_s, least_s))
