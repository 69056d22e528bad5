"""What if a drafter agreed with the target more often, or less: a recording with some decisions turned over.

What turns over is drawn by (seed, request, drafter) and by place (`turning`): other requests do not matter, and a
larger shift of the same sign turns over all that a smaller one does.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..rounds.recording import RoundsRecording
from ..rounds.shifted import shift_rounds
from ..shifted_decisions import Turning, checked_shifts, keyed_draws, shifted_name, turning
from .meta import TrieMeta
from .recording import TrieRecording
from .trie import Trie, TrieRequest

Recording = TypeVar("Recording", TrieRecording, RoundsRecording)


def shift_acceptance(trace: Recording, shifts: Mapping[str, float], *, seed: int) -> Recording:
    """A copy of a recording in which drafters write the target's token more often, or less, by `shifts`.

    In a recording of contexts, the decisions are those of the trunk. Only tokens change: probabilities, entropies and
    distances stay as they were recorded, so whatever reads them (stop rules, lossy verification, policies that watch
    distances) sees the old ones. A new refusal is a token that no model writes there; what follows it is not recorded.

    In an imported recording, a round ends at its first new refusal. A round whose refusal turned over is kept whole
    there, and what follows is unknown unless another round of a token drafter says it. Measured seconds stay.

    Args:
        trace: of either kind; not changed.
        shifts: by drafter, change of its share of agreement; 0 changes nothing.
        seed: of the draws.

    Raises:
        ValueError: a name that is no drafter of the recording, a share that would leave [0, 1], no decision recorded,
            a vocabulary too small for a token that no model writes.
    """
    if isinstance(trace, RoundsRecording):
        return shift_rounds(trace, shifts, seed=seed)
    return _shift_tries(trace, shifts, seed)


def _shift_tries(trace: TrieRecording, shifts: Mapping[str, float], seed: int) -> TrieRecording:
    drafters = trace.meta.model_names[:-1]
    active = checked_shifts(shifts, drafters)
    turnings: dict[int, Turning] = {}
    for model, name in enumerate(drafters):
        if name in active:
            written = [_agreeing(record.trie, model) for record in trace.requests]
            num_agreed = sum(int(np.count_nonzero(agrees)) for agrees in written)
            turnings[model] = turning(name, num_agreed, sum(len(agrees) for agrees in written), active[name])
    requests = tuple(_shift_request(trace.meta, record, turnings, seed) for record in trace.requests)
    meta = trace.meta.model_copy(update={"name": shifted_name(trace.meta.name, active)})
    return TrieRecording(meta=meta, requests=requests)


def _agreeing(trie: Trie, model: int) -> NDArray[np.bool_]:
    """Whether a model writes the target's token, at every trunk context that wrote one."""
    written = trie.next_token[:, trie.trunk[:-1]]
    agrees: NDArray[np.bool_] = written[model] == written[-1]
    return agrees


def _shift_request(meta: TrieMeta, record: TrieRequest, turnings: Mapping[int, Turning], seed: int) -> TrieRequest:
    trie = record.trie
    nodes = trie.trunk[:-1]
    next_token = trie.next_token.copy()
    for model, how in turnings.items():
        agrees = _agreeing(trie, model)
        draws = keyed_draws(seed, record.request_id, meta.model_names[model], len(nodes))
        turned = how.turns(agrees, draws)
        agreeing, refused = nodes[turned & ~agrees], nodes[turned & agrees]
        next_token[model, agreeing] = next_token[-1, agreeing]
        for node in refused.tolist():
            taken = {*trie.next_token[:, node].tolist(), *next_token[:, node].tolist(), *meta.eos_token_ids}
            next_token[model, node] = _another(taken, meta.vocab_size)
    return replace(record, trie=replace(trie, next_token=next_token))


def _another(taken: set[int], vocab_size: int) -> int:
    """The first token that is not taken: no model writes it, so no context behind it is recorded."""
    token = next((token for token in range(vocab_size) if token not in taken), None)
    if token is None:
        raise ValueError(f"vocab_size must leave a token that no model writes, got {vocab_size}")
    return token
