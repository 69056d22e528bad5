"""Closed forms that only tests ask for: the best window of two levels, and an idealised nested chain."""

from paceline.benchmarks.shared.closed_forms import speedup
from paceline.policies.about import round_tokens


def best_window(acceptance, cost_ratio, *, most):
    """The window from 0 to `most` of most `speedup`, the smallest among equals; 0 says that drafting does not pay."""
    return max(range(most + 1), key=lambda window: speedup(acceptance, window, cost_ratio))


def nested_seconds(acceptance, windows, forward_s):
    """Seconds per token of an idealised nested chain, in which every level is handed exactly its window.

    tau_0 = t_0; E_i = (1 - a_i^(n_i+1)) / (1 - a_i); tau_i = (n_i tau_(i-1) + v_i) / E_i; the answer is tau_(L-1).
    For two levels it is exact. From three levels on it leaves out that a level hands over whole rounds, as
    `chain_speed` does: it charges only the share of the last round that the window takes. Arguments are those of
    `chain_speed`.
    """
    tau = forward_s[0]
    for rate, window, verify_s in zip(acceptance, windows, forward_s[1:], strict=True):
        tau = (window * tau + verify_s) / round_tokens(rate, window)
    return tau
