"""What recorded rounds tell of each depth, by request.

Letters: R requests, D depths, the last of which stands for all deeper ones, N rounds of all requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ...traces.rounds.meta import DrafterInfo
from ...traces.rounds.rounds import RoundsRequest
from .walk import Floats

Ints = NDArray[np.int32]

MIN_DECISIONS = 500
MAX_DEPTHS = 64
MOST_FITTED = 4000  # requests that a fit looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the rounds of one drafter tell, request by request in order.

    Attributes:
        request: `[N]` index of each round's request.
        start: `[N]` output position, ascending in a request.
        accepted: `[N]` tokens seen to agree.
        refused: `[N]` whether a refusal was seen after them.
    """

    request: Ints
    start: Ints
    accepted: Ints
    refused: NDArray[np.bool_]

    def thinned(self, most: int) -> "Told":
        """The rounds of at most so many requests, evenly spaced among those with rounds."""
        present = np.flatnonzero(np.bincount(self.request))
        chosen = np.isin(np.arange(present[-1] + 1), present[:: -(-len(present) // most)])[self.request]
        return Told(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    @property
    def num_decisions(self) -> int:
        """Agreements and refusals."""
        return int(self.accepted.sum(dtype=np.int64)) + int(self.refused.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthCounts:
    """Decisions by depth.

    Attributes:
        agreed: `[R, D]` rounds that kept the token at that depth.
        refused: `[R, D]` rounds that were seen to lose the token at that depth.
    """

    agreed: Floats
    refused: Floats


def told_by(requests: Sequence[RoundsRequest], drafter: DrafterInfo) -> Told:
    """What a drafter's rounds tell, but for those the end of the text may have ended.

    A round whose whole draft would not have fitted into the text is left out, however it ended: to leave out only
    those that reached the end would count short rounds more often than long ones. Where no round had room, all are
    taken, and one that reached the last token tells of agreements only.
    """
    found = [(index, rounds) for index, one in enumerate(requests) if (rounds := one.rounds.get(drafter.name))]
    if not found:
        none = np.empty(0, np.int32)
        return Told(request=none, start=none, accepted=none, refused=none.astype(np.bool_))
    counts = [len(rounds.start) for _, rounds in found]
    start = np.concatenate([rounds.start for _, rounds in found])
    accepted = np.concatenate([rounds.accepted for _, rounds in found])
    drafted = np.concatenate([rounds.drafted for _, rounds in found])
    refused = ~np.concatenate([rounds.censored(drafter.window) for _, rounds in found])
    lengths = [requests[index].length(drafter.name) for index, _ in found]
    room = np.maximum(np.repeat(np.array(lengths, np.int32), counts) - 1 - start, 0)
    window = drafter.window or int(accepted.max(initial=0))
    judged = drafted != 0  # a plain step tells nothing of acceptance
    fits = judged & (room >= np.where(drafted < 0, window, drafted))
    if not fits.any():
        fits = judged
        refused &= accepted < room
        accepted = np.minimum(accepted, room)
    request = np.repeat(np.array([index for index, _ in found], np.int32), counts)
    return Told(request=request[fits], start=start[fits], accepted=accepted[fits], refused=refused[fits])


def count_depths(told: Told, num_requests: int) -> DepthCounts:
    """Agreements and refusals by request and depth.

    From the deepest depth on at which, with all deeper ones, at least 500 decisions were seen (a rate is then known to
    about 0.02), all depths share one rate, seen or not; there are never more than 64 rates.
    """
    last = _last_depth(told.accepted + told.refused)
    shape = (num_requests, last + 2)
    kept = _histogram(told.request, np.minimum(told.accepted, last + 1), shape)
    lost = _histogram(told.request[told.refused], np.minimum(told.accepted[told.refused], last), shape)
    agreed = np.cumsum(kept[:, ::-1], axis=1)[:, ::-1][:, 1:]
    agreed[:, last] = np.bincount(told.request, np.maximum(told.accepted - last, 0), minlength=num_requests)
    return DepthCounts(agreed=agreed, refused=lost[:, :-1])


def _last_depth(decisions: Ints) -> int:
    """The deepest depth with enough decisions there and beyond; `decisions` of each round."""
    for depth in range(min(int(decisions.max(initial=0)), MAX_DEPTHS) - 1, 0, -1):
        if int(np.maximum(decisions - depth, 0).sum(dtype=np.int64)) >= MIN_DECISIONS:
            return depth
    return 0


def _histogram(row: Ints, column: Ints, shape: tuple[int, int]) -> Floats:
    counted = np.bincount(row.astype(np.int64) * shape[1] + column, minlength=shape[0] * shape[1])
    return counted.reshape(shape).astype(np.float64)
