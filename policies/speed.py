"""Expected tokens of rounds in closed form, where acceptance is independent and constant.

Letters: a acceptance, n window. Independent means that a verifier accepts each token with the same probability whatever
happened before.
"""

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
    visited = np.zeros(longest)
    visited[0] = 1.0
    for total in range(1, longest):
        first = max(0, total - most)
        visited[total] = visited[first:total] @ kept[total - first : 0 : -1]
    judged = np.zeros((longest, longest + most))
    row = np.zeros(longest + most)
    for window in range(1, longest + 1):
        start = window - 1
        row[start : start + most + 1] += visited[start] * kept
        judged[start, window:] = row[window:]
    return judged, np.cumsum(visited)


def kept_of(judged: Floats, rate: float) -> Floats:
    """`[M + 1]` distribution of a verifier's kept tokens, its own included, from `[M]` that of the tokens it judges."""
    at_least = judged[::-1].cumsum()[::-1] - judged
    kept = np.zeros(len(judged) + 1)
    kept[1:] = rate ** np.arange(len(judged)) * (judged + (1.0 - rate) * at_least)
    return kept
