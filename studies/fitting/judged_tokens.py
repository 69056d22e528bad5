"""The tokens that rounds of one drafter would have judged over a recording's own text, as a policy sees them.

Letters: N tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...policies.learned.acceptance_head import moved
from ...traces.tries.trie import TrieRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTokens:
    """Of one request: what the target judges up to the first refused token of each round.

    Attributes:
        signals: `[N, 4]` probability, root of the entropy in nats, gap, and 1 / (1 + index in the draft).
        kept: `[N]` whether the target keeps the token.
        rounds: tokens of each round, in order; they add up to N.
    """

    signals: NDArray[np.float64]
    kept: NDArray[np.bool_]
    rounds: tuple[int, ...]

    def agreement(self, start: float) -> NDArray[np.float64]:
        """`[N]` running agreement of the request at the start of each token's round, `start` before the first one."""
        found, place = np.empty(len(self.kept)), 0
        for count in self.rounds:
            found[place : place + count] = start
            # Refused tokens after the first were judged as well, but nobody knows how many a shorter draft would have.
            start = moved(start, int(self.kept[place : place + count].sum()), count)
            place += count
        return found


def judged_tokens(request: TrieRequest, level: int, window: int) -> JudgedTokens:
    """Play drafts of up to `window` >= 1 tokens by the model at `level` over a request's trunk, after its prefill."""
    trie = request.trie
    trunk = trie.trunk[:-1]  # where somebody wrote a token
    kept = trie.agreement[level]
    places: list[int] = []
    depths: list[int] = []
    rounds: list[int] = []
    for start, count in _rounds(kept, window):
        places += range(start, start + count)
        depths += range(count)
        rounds.append(count)
    nodes = trunk[places]
    signals = (
        np.exp(trie.next_log_prob[level][nodes]),
        trie.entropy[level][nodes] ** 0.5,
        trie.gap[level][nodes],
        1.0 / (1.0 + np.array(depths, dtype=float)),
    )
    return JudgedTokens(signals=np.column_stack(signals), kept=kept[places], rounds=tuple(rounds))


def _rounds(kept: NDArray[np.bool_], window: int) -> Iterator[tuple[int, int]]:
    """(place of the first token, tokens up to the first refused one) of each round; the target writes one after it."""
    refused = np.flatnonzero(~kept)
    place = 1  # the prefill wrote the first token
    while place < len(kept):
        later = refused[np.searchsorted(refused, place) :]
        end = min(place + window, len(kept))
        end = min(end, int(later[0]) + 1) if len(later) else end
        yield place, end - place
        place = end + (1 if kept[end - 1] else 0)
