"""What a recording tells a lossy rule of a judged token."""

from math import exp, nan

from ...decoding.rules.acceptance import Rule
from ...decoding.rules.facts import Facts
from ...decoding.session import Session
from .voices import Voice


def recorded_facts(
    session: Session, verifier: Voice, drafter: Voice | None, index: int, node: int, *, same: bool, tvd: float
) -> Facts:
    """The facts of pending token `index` for a verifier.

    Args:
        session: whose token it is.
        verifier: says what it would write there.
        drafter: of the token; None for a model-free one, which has no probabilities.
        index: of the token among the pending ones.
        node: its context, recorded.
        same: whether the verifier writes this token.
        tvd: distance of the two distributions at the context.
    """
    child = session.places[index]
    own_child = verifier.child(node)
    if same:
        target_prob = exp(verifier.number("next_log_prob", node))
    else:
        target_prob = exp(verifier.number("own_log_prob", child)) if child >= 0 else nan
    return Facts(
        same=same,
        draft_prob=nan if drafter is None else exp(drafter.number("next_log_prob", node)),
        target_prob=target_prob,
        top_prob=exp(verifier.number("top_log_prob", node)),
        entropy=verifier.number("entropy", node),
        tvd=tvd,
        judge=session.judges[index],
        draft_top_prob=nan if drafter is None else exp(drafter.number("top_log_prob", node)),
        own_draft_prob=nan if drafter is None or own_child < 0 else exp(drafter.number("own_log_prob", own_child)),
    )


def lacks(rule: Rule, facts: Facts) -> bool:
    """Whether the recording does not hold what the rule looks at: a token it did not follow has no probability."""
    if facts.same:
        return False
    if rule.needs_target_prob and facts.target_prob != facts.target_prob:  # NaN is the only value unlike itself
        return True
    return getattr(rule, "needs_own_draft_prob", False) and facts.own_draft_prob != facts.own_draft_prob
