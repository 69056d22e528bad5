"""What a rule is told of a judged token, by either world."""

import math
from typing import Any, NamedTuple


class Facts(NamedTuple):
    """What a rule is told of a judged token: from both distributions at the context before it.

    Every field has one shape, `[]` or `[K]`; so has the answer of a rule.

    Attributes:
        same: whether the verifier would write this very token.
        draft_prob: the drafter's probability of it, 0 to 1; NaN for a model-free drafter.
        target_prob: the verifier's probability of it, 0 to 1.
        top_prob: the verifier's largest probability, 0 to 1.
        entropy: of the verifier, nats.
        tvd: total variation distance of the two distributions, 0 to 1; NaN for a model-free drafter.
        judge: level of the highest member that endorses it so far: the last verifier that accepted it, else its
            drafter.
        draft_top_prob: the drafter's largest probability, 0 to 1; NaN for a model-free drafter.
        own_draft_prob: the drafter's probability of the token the verifier would write instead, 0 to 1; NaN for a
            model-free drafter, and where a recording does not hold that token.
    """

    same: Any
    draft_prob: Any
    target_prob: Any
    top_prob: Any
    entropy: Any
    tvd: Any
    judge: Any
    draft_top_prob: Any
    own_draft_prob: Any


def unknown_facts(judge: int) -> Facts:
    """All a rule can be told where nothing but who endorses the token is known."""
    nan = math.nan
    return Facts(False, nan, nan, nan, nan, nan, judge, nan, nan)  # noqa: FBT003 - by position as everywhere
