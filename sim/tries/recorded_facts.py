"""What a recording tells a lossy rule of a judged token."""

from math import exp, nan

from ...decoding.rules.acceptance import Rule
from ...decoding.rules.facts import Facts
from ...decoding.session import Session
from .request_tables import RequestTables


def recorded_facts(
    session: Session,
    tables: RequestTables,
    num_free: int,
    level: int,
    index: int,
    node: int,
    *,
    same: bool,
    tvd: float,
) -> Facts:
    """The facts of pending token `index` for the verifier at `level`.

    Args:
        session: whose token it is.
        tables: of the request.
        num_free: model-free members, which come first in the pool and have no probabilities.
        level: of the verifier.
        index: of the token among the pending ones.
        node: its context, recorded.
        same: whether the verifier writes this token.
        tvd: distance of the two distributions at the context.
    """
    child = session.places[index]
    own_child = tables.child[level][node]
    drafter = session.drafters[index]
    drafts = drafter >= num_free
    if same:
        target_prob = exp(tables.next_log_prob[level][node])
    else:
        target_prob = exp(tables.own_log_prob[level][child]) if child >= 0 else nan
    return Facts(
        same=same,
        draft_prob=exp(tables.next_log_prob[drafter][node]) if drafts else nan,
        target_prob=target_prob,
        top_prob=exp(tables.top_log_prob[level][node]),
        entropy=tables.entropy[level][node],
        tvd=tvd,
        judge=session.judges[index],
        draft_top_prob=exp(tables.top_log_prob[drafter][node]) if drafts else nan,
        own_draft_prob=exp(tables.own_log_prob[drafter][own_child]) if drafts and own_child >= 0 else nan,
    )


def lacks(rule: Rule, facts: Facts) -> bool:
    """Whether the recording does not hold what the rule looks at: a token it did not follow has no probability."""
    if facts.same:
        return False
    if rule.needs_target_prob and facts.target_prob != facts.target_prob:  # NaN is the only value unlike itself
        return True
    return getattr(rule, "needs_own_draft_prob", False) and facts.own_draft_prob != facts.own_draft_prob
