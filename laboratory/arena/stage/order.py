"""Other orders of a recording's requests, and a part of one that is too long."""

from dataclasses import replace

import numpy as np

from ....traces.forms import by_form
from ....traces.recording import Recording
from ....traces.rounds.rounds import TARGET_ALONE, RoundsRequest
from ....traces.tries.trie import TrieRequest

MOST_TOKENS = 20_000  # of output in a run of the arena
PARTS = 4


def reordered(recording: Recording, seed: int) -> Recording:
    """The same requests in another order; at seed 0 in the recorded one.

    Requests change places within a quarter of the recording: what changes in mid-run still does.

    Args:
        recording: of either form.
        seed: >= 0.
    """
    if seed == 0:
        return recording
    rng = np.random.default_rng(seed)
    parts = np.array_split(np.arange(len(recording.requests)), PARTS)
    return _with_requests(recording, [int(place) for part in parts for place in rng.permutation(part)])


def shortened(recording: Recording) -> Recording:
    """As it is, or every second, third, ... request of it, so that at most `MOST_TOKENS` of output are left."""
    tokens = by_form(
        recording,
        tries=lambda tries: [_trunk_tokens(request) for request in tries.requests],
        rounds=lambda rounds: [_alone_tokens(request) for request in rounds.requests],
    )
    step = 1
    while sum(tokens[::step]) > MOST_TOKENS:
        step += 1
    return recording if step == 1 else _with_requests(recording, list(range(0, len(tokens), step)))


def _with_requests(recording: Recording, places: list[int]) -> Recording:
    return by_form(
        recording,
        tries=lambda tries: replace(tries, requests=[tries.requests[place] for place in places]),
        rounds=lambda rounds: replace(rounds, requests=tuple(rounds.requests[place] for place in places)),
    )


def _trunk_tokens(request: TrieRequest) -> int:
    return len(request.trie.trunk) - 1


def _alone_tokens(request: RoundsRequest) -> int:
    return request.length(TARGET_ALONE)
