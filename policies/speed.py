"""Expected tokens and seconds of rounds and chains in closed form, where acceptance is independent and constant.

A policy plans with it and a test checks the simulator against it. Letters: L levels from the lowest (0) to the target
(L - 1); a acceptance, n window, t and v seconds of a forward. Independent means that a verifier accepts each token with
the same probability whatever happened before, and that a forward costs the same at every width met.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSpeed:
    """What one round of the target brings and costs.

    Attributes:
        tokens: expected tokens it commits, the target's own among them, >= 1.
        seconds: expected seconds of all its forwards, >= 0.
    """

    tokens: float
    seconds: float

    @property
    def seconds_per_token(self) -> float:
        """Seconds per committed token over many rounds."""
        return self.seconds / self.tokens


def round_tokens(acceptance: float, window: int) -> float:
    """Expected tokens of a two-level round, (1 - a^(n+1)) / (1 - a), and n + 1 at a = 1.

    (Leviathan et al. 2023, arXiv:2211.17192, equation 1.) Summed as 1 + a + ... + a^n, which needs no limit.

    Args:
        acceptance: a, 0 to 1.
        window: n, >= 0; 0 is plain decoding.

    Raises:
        ValueError: an argument out of range.
    """
    _check_acceptance(acceptance)
    _check_window("window", window, 0)
    return sum(acceptance**accepted for accepted in range(window + 1))


def speedup(acceptance: float, window: int, cost_ratio: float) -> float:
    """How many times faster than plain decoding two levels are, (1 - a^(n+1)) / ((1 - a) (n c + 1)).

    (Leviathan et al. 2023, arXiv:2211.17192, Thm 3.8.) A verification costs as much as a forward of one token.

    Args:
        acceptance: a, 0 to 1.
        window: n, >= 0.
        cost_ratio: c, seconds of a draft forward over those of a target forward, >= 0.

    Raises:
        ValueError: an argument out of range.
    """
    _check_seconds("cost_ratio", cost_ratio)
    return round_tokens(acceptance, window) / (window * cost_ratio + 1.0)


def chain_speed(acceptance: Sequence[float], windows: Sequence[int], forward_s: Sequence[float]) -> RoundSpeed:
    """Expectation for the policy `chain`, exact for any number of levels, far from the end of an answer.

    Level 1 judges whole drafts and keeps 1 to n_0 + 1 tokens, its own among them. A level above waits until the tokens
    kept for it number at least its window, and since the last round below comes whole, it may judge more: in three
    levels n_1 to n_1 + n_0 tokens. How many is where a renewal process first reaches the window.

    The end of an answer is left out: there drafts are cut to what is left, and a last round writes no more than fits.

    Args:
        acceptance: `[L - 1]` the rate at which level i + 1 accepts the tokens of level i, 0 to 1.
        windows: `[L - 1]` tokens of level i before level i + 1 judges them, >= 1; those above the first count kept
            tokens.
        forward_s: `[L]` seconds of a forward: one token at level 0, a verification above, >= 0.

    Raises:
        ValueError: lengths that do not fit, or an entry out of range.
    """
    _check_chain(acceptance, windows, forward_s)
    judged = np.zeros(windows[0] + 1)
    judged[windows[0]] = 1.0
    seconds = windows[0] * forward_s[0] + forward_s[1]
    kept = kept_of(judged, acceptance[0])
    for rate, window, verify_s in zip(acceptance[1:], windows[1:], forward_s[2:], strict=True):
        judged, rounds = gathered(kept, window)
        seconds = float(rounds[-1]) * seconds + verify_s
        kept = kept_of(judged[-1], rate)
    return RoundSpeed(tokens=float(kept @ np.arange(len(kept))), seconds=seconds)


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


def _check_chain(acceptance: Sequence[float], windows: Sequence[int], forward_s: Sequence[float]) -> None:
    levels = len(forward_s)
    if levels < 2:
        raise ValueError(f"forward_s must have an entry for each of at least two levels, got {levels}")
    for name, given in (("acceptance", acceptance), ("windows", windows)):
        if len(given) != levels - 1:
            raise ValueError(f"{name} must have {levels - 1} entries for {levels} levels, got {len(given)}")
    for rate in acceptance:
        _check_acceptance(rate)
    for window in windows:
        _check_window("windows", window, 1)
    for seconds in forward_s:
        _check_seconds("forward_s", seconds)


def _check_acceptance(acceptance: float) -> None:
    if not 0.0 <= acceptance <= 1.0:
        raise ValueError(f"acceptance must lie in [0, 1], got {acceptance}")


def _check_window(field: str, value: int, low: int) -> None:
    if value < low:
        raise ValueError(f"{field} must be >= {low}, got {value}")


def _check_seconds(field: str, value: float) -> None:
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"{field} must be >= 0 and finite, got {value}")
