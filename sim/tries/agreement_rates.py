"""What replay does where the recording ends: draw from rates fitted on what it holds, and count every draw.

Contexts beyond the recorded closure are the only unknowns. The rate at which two models agree there is fitted on the
recorded contexts farthest from the trunk, since agreement falls the further a draft has gone astray. Draws are keyed by
(seed, request, position, drafter, verifier): two policies that come to the same unknown meet the same luck (common
random numbers).
"""

from copy import copy
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...traces.tries.recording import TrieRecording


def _distance_from_trunk(parent: NDArray[np.int32], on_trunk: NDArray[np.bool_]) -> NDArray[np.int32]:
    distance = np.zeros(len(parent), dtype=np.int32)
    astray = np.flatnonzero(~on_trunk)
    above: NDArray[np.integer[Any]] = astray  # of each of these, the context so many tokens before it
    while len(astray):
        distance[astray] += 1
        above = parent[above]
        off = ~on_trunk[above]
        astray, above = astray[off], above[off]
    return distance


class _Fitted:
    """Rates of a recording, fitted when they are asked for: an exact run never needs them."""

    def __init__(self, trace: TrieRecording) -> None:
        self._trace = trace

    @cached_property
    def rates(self) -> NDArray[np.float64]:
        """See `Fallback`."""
        count = len(self._trace.meta.models)
        equal = np.zeros((count, count))
        total = 0
        for record in self._trace.requests:
            trie = record.trie
            distance = _distance_from_trunk(trie.parent, trie.on_trunk)
            outer = distance > distance.max(initial=0) // 2
            if not outer.any():
                outer = np.ones(trie.num_nodes, dtype=bool)
            views = trie.next_token[:, outer]
            equal += (views[:, None, :] == views[None, :, :]).sum(axis=2)
            total += int(outer.sum())
        rates: NDArray[np.float64] = equal / max(total, 1)
        return rates


class Fallback:
    """Agreement of each pair of models beyond the recording.

    Args:
        trace: where the rates are fitted: at the recorded contexts farthest from the trunk (the outer half of the
            recorded distances of each request), which resemble most what lies beyond; at all of a request's contexts
            where none is off the trunk.
        seed: of the draws.
    """

    def __init__(self, trace: TrieRecording, *, seed: int = 0) -> None:
        self._seed = seed
        self._fitted = _Fitted(trace)

    def reseeded(self, seed: int) -> "Fallback":
        """The same rates, fitted once for both, with draws of another seed."""
        other = copy(self)
        other._seed = seed
        return other

    @property
    def rates(self) -> NDArray[np.float64]:
        """`[M, M]` rates of equal next tokens, fitted at first use, which reads the whole recording."""
        return self._fitted.rates

    def accepts(self, request_id: str, position: int, drafter: int, verifier: int) -> bool:
        """Whether `verifier` would write what `drafter` wrote at `position` (indices into `meta.models`)."""
        key = f"{self._seed}/{request_id}/{position}/{drafter}/{verifier}".encode()
        draw = int.from_bytes(blake2b(key, digest_size=8).digest(), "big") / 2.0**64
        return draw < float(self.rates[drafter, verifier])
