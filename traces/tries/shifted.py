"""What if a drafter agreed with the target more often, or less: a recording with some decisions turned over.

What turns over is drawn by (seed, request, drafter) and by place (`shifted_decisions`): other requests do not matter,
and a larger shift of the same sign turns over all that a smaller one does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..shifted_decisions import Turning, keyed_draws, turnings_of
from .meta import TrieMeta
from .trie import TrieRequest


def shifted_requests(
    meta: TrieMeta, requests: Sequence[TrieRequest], shifts: Mapping[str, float], seed: int
) -> tuple[TrieRequest, ...]:
    """The requests with decisions of the trunk turned over; see `Recording.shifted`."""

    def counts(name: str) -> tuple[int, int]:
        model = meta.model_names.index(name)
        agrees = [request.trie.agreement[model] for request in requests]
        return sum(int(np.count_nonzero(each)) for each in agrees), sum(len(each) for each in agrees)

    turnings = turnings_of(shifts, meta.model_names[:-1], counts)
    by_model = {meta.model_names.index(name): how for name, how in turnings.items()}
    return tuple(_shift_request(meta, request, by_model, seed) for request in requests)


def _shift_request(meta: TrieMeta, record: TrieRequest, turnings: Mapping[int, Turning], seed: int) -> TrieRequest:
    trie = record.trie
    nodes = trie.trunk[:-1]
    next_token = trie.next_token.copy()
    for model, how in turnings.items():
        agrees = trie.agreement[model]
        draws = keyed_draws(seed, record.request_id, meta.model_names[model], len(nodes))
        turned = how.turns(agrees, draws)
        agreeing, refused = nodes[turned & ~agrees], nodes[turned & agrees]
        next_token[model, agreeing] = next_token[-1, agreeing]
        for node in refused.tolist():
            taken = {*trie.next_token[:, node].tolist(), *next_token[:, node].tolist(), *meta.eos_token_ids}
            next_token[model, node] = _another(taken, meta.vocab_size)
    return replace(record, trie=replace(trie, next_token=next_token))


def _another(taken: set[int], vocab_size: int) -> int:
    """The first token that is not taken: no model writes it, so no context after it is recorded."""
    token = next((token for token in range(vocab_size) if token not in taken), None)
    if token is None:
        raise ValueError(f"vocab_size must leave a token that no model writes, got {vocab_size}")
    return token
