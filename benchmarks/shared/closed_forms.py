"""Expected tokens and seconds of chains in closed form, where acceptance is independent and constant.

Benchmarks and tests compare the simulator with them. Letters: L levels from the lowest (0) to the target (L - 1).
Independent means that a verifier accepts each token with the same probability in every context, and that a forward
costs the same at every occurring width.
"""

from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

import numpy as np
from paceline.base.errors import check_least, check_within
from paceline.policies.about import Floats, round_tokens


class RoundSpeed(NamedTuple):
    """Gain and cost of one round of the target."""

    tokens: float  # expected committed tokens, including the target's own, >= 1
    seconds: float  # expected seconds of all its forwards, >= 0

    @property
    def seconds_per_token(self) -> float:
        """Seconds per token over many rounds."""
        return self.seconds / self.tokens


def speedup(acceptance: float, window: int, cost_ratio: float) -> float:
    """Speed-up of two levels over plain decoding, (1 - a^(n+1)) / ((1 - a) (n c + 1)).

    (Leviathan et al. 2023, arXiv:2211.17192, Thm 3.8.) A verification costs as much as a forward of one token; c is the
    seconds of a draft forward over those of a target forward, >= 0. The others are those of `round_tokens`.
    """
    return round_tokens(acceptance, window) / (window * cost_ratio + 1.0)


def ahead_tokens(acceptance: float, window: int) -> float:
    """Expected tokens of a step in which a draft of n tokens is written while the target judges pending ones.

    If all was right, the target's own token is the first one ahead with probability a, and n - 1 tokens are pending in
    the next step; else none are. A step with none pending gives 1 token and, with probability a, is followed by one
    with n - 1; a step with n - 1 pending gives (1 - a^n) / (1 - a) tokens and, with probability a^n, is followed by
    another such step. So a share a / (1 + a - a^n) of all steps begins with n - 1, and a step gives

        (1 - a^n) / ((1 - a) (1 + a - a^n))

    tokens, and n at a = 1. (Our formula, for the steps of `Overlap`; PEARL, arXiv:2408.11850, counts other rounds.)
    Raises ValueError unless a is 0 to 1 and n >= 1.
    """
    check_within("acceptance", acceptance, "[0, 1]")
    check_least("window", window, 1)
    return round_tokens(acceptance, window - 1) / (1.0 + acceptance - acceptance**window)


def chain_speed(acceptance: Sequence[float], windows: Sequence[int], forward_s: Sequence[float]) -> RoundSpeed:
    """Expectation for the policy `chain`, exact for any number of levels, far from the end of an answer.

    Level 1 judges whole drafts and keeps 1 to n_0 + 1 tokens, including its own. A level above waits until the tokens
    kept for it number at least its window, and since the last round below is kept whole, it may judge more: with three
    levels n_1 to n_1 + n_0 tokens. Their number is where a renewal process first reaches the window.

    The end of an answer, where drafts are cut to the remaining length, is left out.

    Args:
        acceptance: `[L - 1]` the rate at which level i + 1 accepts the tokens of level i, 0 to 1.
        windows: `[L - 1]` tokens of level i before level i + 1 judges them, >= 1; those above the first count kept
            tokens.
        forward_s: `[L]` seconds of a forward: one token at level 0, a verification above, >= 0.
    """
    judged = np.zeros(windows[0] + 1)
    judged[windows[0]] = 1.0
    seconds = windows[0] * forward_s[0] + forward_s[1]
    kept = _kept_of(judged, acceptance[0])
    for rate, window, verify_s in zip(acceptance[1:], windows[1:], forward_s[2:], strict=True):
        judged, rounds = _gathered(kept, window)
        seconds = rounds * seconds + verify_s
        kept = _kept_of(judged, rate)
    return RoundSpeed(float(kept @ np.arange(len(kept))), seconds)


def _gathered(kept: Floats, window: int) -> tuple[Floats, float]:
    """Whole rounds up to a window n. Letter: R the most tokens of one round.

    Rounds add up as a renewal process, which visits a total t with probability u_t: a round that takes the total from
    t < n to m >= n is the last one, with probability u_t kept_(m - t).

    Args:
        kept: `[R + 1]` probability that a round keeps k tokens, at index k; none at 0.
        window: n, >= 1.

    Returns:
        `[n + R]` probability of having m tokens when the window is reached, and the expected rounds until then.
    """
    most = len(kept) - 1
    by_count = kept.tolist()
    visited = [1.0]
    for total in range(1, window):
        visited.append(sum(map(mul, visited[-most:], by_count[min(total, most) : 0 : -1])))
    judged = np.convolve(visited, kept)
    judged[:window] = 0.0
    return judged, sum(visited)


def _kept_of(judged: Floats, rate: float) -> Floats:
    """`[M + 1]` distribution of a verifier's kept tokens, its own included, from `[M]` that of the tokens it judges."""
    at_least = judged[::-1].cumsum()[::-1] - judged
    kept = np.zeros(len(judged) + 1)
    kept[1:] = rate ** np.arange(len(judged)) * (judged + (1.0 - rate) * at_least)
    return kept


def least_along_paths(acceptance: Floats, forward_s: Floats) -> Floats:
    """Seconds per token of the best nested chain up to every level, as shortest paths whose edges are functions.

    An edge from level j to level i for every window n maps tau_j to (n tau_j + v_i(n + 1)) / E(n), which rises with
    tau_j. Every edge is relaxed until no path becomes shorter (as in Bellman-Ford, where edges add), which needs no
    order of the levels. Hierarchical Speculative Decoding (arXiv:2510.19705) is reported to find its hierarchies by
    such a generalised shortest path; this is the problem of `specrouter.search` without its order of the levels.

    Args:
        acceptance: `[L, L]` the rate at which the member of the column accepts tokens of the row's; read above the
            diagonal.
        forward_s: `[L, N + 1]` seconds of a forward over k new tokens at column k - 1.
    """
    size, longest = len(forward_s), forward_s.shape[1] - 1
    windows = np.arange(1.0, longest + 1.0)
    # Shape [L, L, N], indexed [j, i, n - 1].
    tokens = 1.0 + np.cumsum(acceptance[:, :, None] ** windows, axis=2)
    upwards = np.triu(np.ones((size, size), dtype=bool), 1)[:, :, None]
    token_s: Floats = forward_s[:, 0].copy()
    while True:
        through = (windows * token_s[:, None, None] + forward_s[None, :, 1:]) / tokens
        shorter = np.minimum(token_s, np.where(upwards, through, np.inf).min(axis=(0, 2)))
        if (shorter == token_s).all():
            return shorter
        token_s = shorter
