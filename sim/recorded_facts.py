"""What a recording says of the text a lossy policy committed: a walk in its trie when the request is closed.

What a recording tells a lossy rule of a judged token.
"""

from collections.abc import Mapping
from math import exp, nan
from typing import NamedTuple

from ..decoding.rules import Facts, Rule
from ..decoding.session import Session
from ..runs.log import TextQuality, same_counts
from .context_tables import RequestTables, Voice


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


def recorded_quality(tables: RequestTables, level: int, tokens: list[int], anchors: Mapping[int, int]) -> TextQuality:
    """The quality of one answer.

    After a step back to the trunk the target's view is that of the trunk's context there, as in the replay itself.
    Between the end of the record and that step nothing is known.

    Args:
        tables: of the request.
        level: of the target.
        tokens: committed ones.
        anchors: by position, the node at which replay went on after it had left the record.
    """
    trunk, count = tables.trunk_tokens, len(tokens)
    if tokens == trunk:  # as most are
        walk, same = _Walk(0, count, count, tables.trunk_log_prob, count), (count, count)
    else:
        walk, same = _walk(tables, level, tokens, anchors), same_counts(tokens, trunk)
    return TextQuality(
        **walk._asdict(),
        trunk_tokens=len(trunk),
        trunk_log_prob=tables.trunk_log_prob,
        same_tokens=same[0],
        same_start=same[1],
    )


class _Walk(NamedTuple):
    """What a walk saw; see `TextQuality`."""

    divergences: int
    seen_tokens: int
    scored_tokens: int
    log_prob: float
    exact_start: int


def _walk(tables: RequestTables, level: int, tokens: list[int], anchors: Mapping[int, int]) -> _Walk:
    writes, own_log_prob = tables.next_token[level], tables.own_log_prob[level]
    node, num_seen, divergences, exact_start = 0, 0, 0, len(tokens)
    log_probs: list[float] = []
    for position, token in enumerate(tokens):
        if node < 0:
            exact_start = min(exact_start, position)
            node = anchors.get(position, -1)
        if token < 0 or node < 0:  # a token without an identity stands for a modelled one
            node = -1
            continue
        num_seen += 1
        child = tables.find_child(node, token)
        if writes[node] == token:
            log_probs.append(tables.next_log_prob[level][node])
        else:
            divergences += 1
            if child >= 0:
                log_probs.append(own_log_prob[child])
        node = child
    return _Walk(divergences, num_seen, len(log_probs), sum(log_probs), exact_start)
