"""What a recording says of the text a lossy policy committed: a walk in its trie when the request is closed."""

from collections.abc import Mapping
from typing import NamedTuple

from ...runs.text_quality import TextQuality, same_counts
from .request_tables import RequestTables


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
    trunk, trunk_log_prob = tables.trunk_tokens, tables.trunk_log_prob
    count = len(tokens)
    if tokens == trunk:
        return TextQuality(
            divergences=0,
            seen_tokens=count,
            scored_tokens=count,
            log_prob=trunk_log_prob,
            trunk_tokens=count,
            trunk_log_prob=trunk_log_prob,
            same_tokens=count,
            same_start=count,
            exact_start=count,
        )
    walk = _walk(tables, level, tokens, anchors)
    same_tokens, same_start = same_counts(tokens, trunk)
    return TextQuality(
        divergences=walk.divergences,
        seen_tokens=walk.num_seen,
        scored_tokens=len(walk.log_probs),
        log_prob=sum(walk.log_probs),
        trunk_tokens=len(trunk),
        trunk_log_prob=trunk_log_prob,
        same_tokens=same_tokens,
        same_start=same_start,
        exact_start=walk.exact_start,
    )


class _Walk(NamedTuple):
    """What a walk saw; `log_probs` are those on record, the others as in `TextQuality`."""

    divergences: int
    num_seen: int
    exact_start: int
    log_probs: list[float]


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
    return _Walk(divergences, num_seen, exact_start, log_probs)
