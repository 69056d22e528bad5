"""How many tokens a drafter drafts where it stops by its own rule: an n-gram that finds nothing, a confidence too low.

A drafter that was always seen to draft its window drafts its window. Of any other, a round that no log speaks of drafts
as much as one of the recorded rounds, drawn with equal chances: from those of the same request if there are many, else
from all. With n rounds of its own a request is its own model with probability n / (n + 8). Lengths are drawn apart from
acceptance, which is fitted by depth among the rounds that drafted that far.

Letters: N rounds of all requests with a known number of drafted tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...traces.meta import MOST
from ...traces.rounds.meta import DrafterInfo
from ...traces.rounds.rounds import RoundsRequest

_OTHERS = 8
_GRAIN = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLengths:
    """Recorded lengths of drafts.

    Attributes:
        drafted: `[N]` tokens drafted, request by request; 2^31 - 1 for a draft of the whole window, which tells of no
            end.
        first: `[R + 1]` where each request's rounds begin in it.
    """

    drafted: NDArray[np.int32]
    first: NDArray[np.int64]

    @property
    def fewest(self) -> int:
        """Tokens that every draft had: up to there none needs to be drawn."""
        return int(self.drafted.min())

    def draw(self, request: int, whose: float, which: float) -> int:
        """Tokens that a round of a request drafts if it is asked for as many, by two numbers from [0, 1)."""
        low, high = int(self.first[request]), int(self.first[request + 1])
        own = high - low
        if not own or whose * (own + _OTHERS) >= own:
            low, high = 0, len(self.drafted)
        return int(self.drafted[low + int(which * (high - low))])


def fit_lengths(requests: Sequence[RoundsRequest], drafter: DrafterInfo) -> DraftLengths | None:
    """The lengths of a drafter's drafts; None if nothing says that it ever drafted less than its window.

    Rounds whose window would not have fitted into the text are left out, since the end may have cut them.
    """
    window = drafter.window or 1
    parts: list[NDArray[np.int32]] = []
    for request in requests:
        rounds = request.rounds.get(drafter.name)
        if rounds is None:
            parts.append(np.empty(0, np.int32))
            continue
        fits = (rounds.drafted >= 0) & (rounds.start + window < request.length(drafter.name))
        parts.append(rounds.drafted[fits])
    drafted = np.concatenate(parts) if parts else np.empty(0, np.int32)
    if not (drafted < window).any():
        return None
    drafted = np.where(drafted < window, drafted, np.int32(MOST))
    return DraftLengths(drafted=drafted, first=np.cumsum([0, *(len(part) for part in parts)]))


def stated_lengths(drafting: float, num_requests: int) -> DraftLengths:
    """Whole drafts, of any window, in a share of the steps that somebody states for all requests; none in the others.

    Args:
        drafting: the share, above 0 and at most 1; kept to four decimals.
        num_requests: R.
    """
    drafted = np.zeros(_GRAIN, np.int32)
    drafted[: max(round(drafting * _GRAIN), 1)] = MOST
    return DraftLengths(drafted=drafted, first=np.zeros(num_requests + 1, np.int64))
