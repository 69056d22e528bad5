"""Other orders of a recording's requests."""

from dataclasses import replace

import numpy as np

from ....traces.forms import by_form
from ....traces.recording import Recording

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
    places = [int(place) for part in parts for place in rng.permutation(part)]
    return by_form(
        recording,
        tries=lambda tries: replace(tries, requests=[tries.requests[place] for place in places]),
        rounds=lambda rounds: replace(rounds, requests=tuple(rounds.requests[place] for place in places)),
    )
