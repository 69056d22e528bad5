"""Learning curves: how far a policy is from the best static chain after its first 100, 1,000 and 10,000 tokens."""

from ..played import BEST_STATIC, MARKS, Played
from .runs import BoardRuns, Ratios

LEARNT = 1_000  # tokens after which a policy ought to know its cell


def ratios_after(runs: BoardRuns, policy: str, tokens: int) -> Ratios:
    """Seconds of the best static chain until so many tokens were out, over the policy's, by cell that has as many.

    Args:
        runs: of the arena.
        policy: any.
        tokens: one of `MARKS`.

    Raises:
        ValueError: tokens of which no seconds are kept.
    """
    mark = MARKS.index(tokens)

    def ratio(ours: Played, static: Played) -> float | None:
        our_s, static_s = ours.seconds_at[mark], static.seconds_at[mark]
        return None if our_s is None or static_s is None else static_s / our_s

    return runs.compared(policy, BEST_STATIC, ratio)


def ratios_beyond(runs: BoardRuns, policy: str) -> Ratios:
    """Seconds of the best static chain after its first `LEARNT` tokens over the policy's, by cell that has more."""
    mark = MARKS.index(LEARNT)

    def ratio(ours: Played, static: Played) -> float | None:
        our_s, static_s = ours.seconds_at[mark], static.seconds_at[mark]
        if our_s is None or static_s is None or ours.seconds <= our_s or static.seconds <= static_s:
            return None
        rest, static_rest = ours.seconds - our_s, static.seconds - static_s
        return static_rest / rest

    return runs.compared(policy, BEST_STATIC, ratio)
