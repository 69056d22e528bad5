"""What if a drafter agreed with the target more often, or less: a recording with some decisions turned over.

What turns over is drawn by (seed, request, drafter) and by place (`shifted_decisions`): other requests do not matter,
and a larger shift of the same sign turns over all that a smaller one does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..shifted_decisions import Turning, keyed_draws, turnings_of
from .lazy_request import LazyRequest
from .meta import TrieMeta
from .trie import Trie, TrieRequest


def shifted_requests(
    meta: TrieMeta, requests: Sequence[TrieRequest], shifts: Mapping[str, float], seed: int
) -> tuple[TrieRequest, ...]:
    """The requests with decisions of the trunk turned over when their tries are asked for; see `Recording.shifted`."""
    agreed, known = _trunk_counts(meta, requests) if any(shifts.values()) else (np.zeros(len(meta.models), int), 0)

    def counts(name: str) -> tuple[int, int]:
        return int(agreed[meta.model_names.index(name)]), known

    turnings = turnings_of(shifts, meta.model_names[:-1], counts)
    by_model = {meta.model_names.index(name): how for name, how in turnings.items()}
    shifted = tuple(_shifted_request(meta, request, by_model, seed) for request in requests)
    if meta.vocab_size <= 2 * len(meta.models) + len(meta.eos_token_ids):
        for request in shifted:  # tokens may not suffice, which is to be told now and not in a replay
            _ = request.trie
    return shifted


def _trunk_counts(meta: TrieMeta, requests: Sequence[TrieRequest]) -> tuple[NDArray[np.int64], int]:
    """Agreements of each model on all trunks, and trunk contexts that wrote a token."""
    agreed, known = np.zeros(len(meta.models), dtype=np.int64), 0
    for request in requests:
        agrees = request.trie.agreement
        agreed += np.count_nonzero(agrees, axis=1)
        known += agrees.shape[1]
    return agreed, known


def _shifted_request(meta: TrieMeta, record: TrieRequest, turnings: Mapping[int, Turning], seed: int) -> TrieRequest:
    return LazyRequest.of(
        request_id=record.request_id,
        tag=record.tag,
        prompt=record.prompt,
        max_new_tokens=record.max_new_tokens,
        num_nodes=record.num_nodes,
        make=partial(_shifted_trie, meta, record, turnings, seed),
    )


def _shifted_trie(meta: TrieMeta, record: TrieRequest, turnings: Mapping[int, Turning], seed: int) -> Trie:
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
    return replace(trie, next_token=next_token, ranks=None)


def _another(taken: set[int], vocab_size: int) -> int:
    """The first token that is not taken: no model writes it, so no context after it is recorded."""
    token = next((token for token in range(vocab_size) if token not in taken), None)
    if token is None:
        raise ValueError(f"vocab_size must leave a token that no model writes, got {vocab_size}")
    return token
