"""The chain and window of least seconds per token where requests go through their rounds in step.

In a batch every operation below the target holds up all requests that wait for the target, so a round is run as few
operations: the lowest level drafts once, each level above judges once and hands over whatever it kept. Requests share
each operation, and a forward over the tokens of all B of them takes v(k), k a request. Two levels, with the tokens of a
round E(n) = 1 + a + ... + a^n (Leviathan et al. 2023, arXiv:2211.17192, equation 1):

    (n v_j(1) + v_t(n + 1)) / E(n)

Three: the middle level m keeps k of n tokens with probability a^k (1 - a), all of them with a^n, and hands over
h = k + 1, its own among them, of which the target keeps r each. Mean seconds over mean tokens:

    (n v_j(1) + v_m(n + 1) + E[v_t(h + 1)]) / E[1 + r + ... + r^h]

The target alone takes v_t(1). All chains of up to three levels are compared, O(L^2 N^2); deeper ones, with more
operations that everybody waits for, are left out.
"""

from collections.abc import Sequence

import numpy as np

from .search import Floats, FoundChain


def best_in_step(
    agreement: Floats, forward_s: Floats, *, verifies: Sequence[bool], entry_s: Floats, plain: bool = True
) -> FoundChain:
    """The chain of least seconds per token of every request; arguments as of `search.best_chain`, for all B requests.

    Args:
        agreement: `[L, L]` rates.
        forward_s: `[L, N + 1]` seconds over k new tokens of every request at column k - 1.
        verifies: `[L]` whether a member may judge.
        entry_s: `[L]` seconds per token that a member adds by taking part at all.
        plain: whether the target alone is a candidate beside the others.

    Returns:
        The chain. Windows above the lowest level are 1: whatever is there is judged. `level_s` are seconds that one
        more token is worth at a level, at the lowest one what it costs.
    """
    target = len(forward_s) - 1
    candidates: list[tuple[int, ...]] = [(target,)] if plain or not target else []
    for low in range(target):
        candidates.append((low, target))
        candidates += [(low, mid, target) for mid in range(low + 1, target) if verifies[mid]]
    found = [in_step(levels, agreement, forward_s, entry_s) for levels in candidates]
    return min(found, key=lambda chain: chain.token_s)


def in_step(levels: tuple[int, ...], agreement: Floats, forward_s: Floats, entry_s: Floats) -> FoundChain:
    """A chain of these one to three members with its best window; see `best_in_step`."""
    if len(levels) == 1:
        return FoundChain(levels=levels, windows=(), level_s=(float(forward_s[levels[0], 0]),))
    if len(levels) == 2:
        return _two(*levels, agreement, forward_s, entry_s)
    low, mid, target = levels
    return _three(low, mid, target, agreement, forward_s, entry_s)


def _two(low: int, target: int, agreement: Floats, forward_s: Floats, entry_s: Floats) -> FoundChain:
    widths = np.arange(1.0, forward_s.shape[1])
    tokens = 1.0 + np.cumsum(agreement[low, target] ** widths)
    draft_s = float(forward_s[low, 0])
    seconds = (widths * draft_s + forward_s[target, 1:]) / tokens
    window = int(seconds.argmin())
    token_s = float(seconds[window] + entry_s[low])
    return FoundChain(levels=(low, target), windows=(window + 1,), level_s=(draft_s, token_s))


def _three(low: int, mid: int, target: int, agreement: Floats, forward_s: Floats, entry_s: Floats) -> FoundChain:
    longest = max(1, forward_s.shape[1] - 2)  # the middle level may hand over one token more than it was handed
    kept, rate = float(agreement[low, mid]), float(agreement[mid, target])
    powers = kept ** np.arange(longest + 1.0)
    refused = np.tril(np.broadcast_to(powers[:-1] * (1.0 - kept), (longest, longest)))  # row n - 1, column k < n
    behind = 1.0 + np.cumsum(rate ** np.arange(1.0, longest + 2.0))  # 1 + r + ... + r^h at h - 1
    tokens = refused @ behind[:-1] + powers[1:] * behind[1:]
    judging_s = forward_s[target, np.minimum(np.arange(1, longest + 2), forward_s.shape[1] - 1)]
    draft_s = float(forward_s[low, 0])
    seconds = np.arange(1.0, longest + 1.0) * draft_s + forward_s[mid, 1 : longest + 1]
    seconds = (seconds + refused @ judging_s[:-1] + powers[1:] * judging_s[1:]) / tokens
    window = int(seconds.argmin())
    token_s = float(seconds[window] + entry_s[low] + entry_s[mid])
    return FoundChain(levels=(low, mid, target), windows=(window + 1, 1), level_s=(draft_s, rate * token_s, token_s))
