"""Expected tokens of rounds in closed form, where acceptance is independent and constant.

Letters: a acceptance, n window. Independent means that a verifier accepts each token with the same probability whatever
happened before.
"""

from operator import mul

import numpy as np
from numpy.typing import NDArray

from ..arguments import check_least, check_within

Floats = NDArray[np.float64]


def round_tokens(acceptance: float, window: int) -> float:
    """Expected tokens of a two-level round, (1 - a^(n+1)) / (1 - a), and n + 1 at a = 1.

    (Leviathan et al. 2023, arXiv:2211.17192, equation 1.) Summed as 1 + a + ... + a^n, which needs no limit.

    Args:
        acceptance: a, 0 to 1.
        window: n, >= 0; 0 is plain decoding.

    Raises:
        ValueError: an argument out of range.
    """
    check_within("acceptance", acceptance, "[0, 1]")
    check_least("window", window, 0)
    return sum(acceptance**accepted for accepted in range(window + 1))


def ahead_tokens(acceptance: float, window: int) -> float:
    """Expected tokens of a step in which a draft of n tokens is written while the target judges what is pending.

    If all was right, the target's own token is the first one ahead with probability a, and n - 1 tokens are pending in
    the next step; else none is. Of a step with none pending come 1 token and, with probability a, one with n - 1; of
    one with n - 1 pending (1 - a^n) / (1 - a) tokens and, with probability a^n, another such. So a share
    a / (1 + a - a^n) of all steps begins with n - 1, and a step gives

        (1 - a^n) / ((1 - a) (1 + a - a^n))

    tokens, and n at a = 1. (Ours, for steps as `decoding.contract.Overlap` puts them together; PEARL,
    arXiv:2408.11850, counts other rounds.)

    Args:
        acceptance: a, 0 to 1.
        window: n, >= 1.

    Raises:
        ValueError: an argument out of range.
    """
    check_within("acceptance", acceptance, "[0, 1]")
    check_least("window", window, 1)
    return round_tokens(acceptance, window - 1) / (1.0 + acceptance - acceptance**window)


def gathered(kept: Floats, longest: int) -> tuple[Floats, Floats]:
    """Whole rounds up to every window. Letters: N the longest window, R the most tokens of one round.

    Rounds add up as a renewal process, which visits a total t with probability u_t: a round that takes the total from
    t < n to m >= n is the last one, with probability u_t kept_(m - t).

    Args:
        kept: `[R + 1]` probability that a round keeps k tokens, at index k; none at 0.
        longest: N, >= 1.

    Returns:
        `[N, N + R]` probability that m tokens are there when the window n is reached, at row n - 1, column m, and `[N]`
        expected rounds until then.
    """
    most = len(kept) - 1
    by_count = kept.tolist()
    visited = [1.0]
    for total in range(1, longest):
        visited.append(sum(map(mul, visited[-most:], by_count[min(total, most) : 0 : -1])))
    reached = np.array(visited)
    # Row t is moved t to the right, to where a round that begins at t ends; then summed over all t < n.
    wide = longest + most
    rounds = np.zeros((longest, wide + 1))
    np.outer(reached, kept, out=rounds[:, : most + 1])
    judged = rounds.ravel()[: longest * wide].reshape(longest, wide).cumsum(axis=0)
    judged[np.tri(longest, wide, dtype=bool)] = 0.0
    return judged, reached.cumsum()


def kept_of(judged: Floats, rate: float) -> Floats:
    """`[M + 1]` distribution of a verifier's kept tokens, its own included, from `[M]` that of the tokens it judges."""
    at_least = judged[::-1].cumsum()[::-1] - judged
    kept = np.zeros(len(judged) + 1)
    kept[1:] = rate ** np.arange(len(judged)) * (judged + (1.0 - rate) * at_least)
    return kept
