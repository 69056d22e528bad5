"""All that is estimated of one drafter: acceptance by depth and request, and how difficulty persists along a text.

Letters: R requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...traces.rounds.meta import DrafterInfo, StatedAcceptance
from ...traces.rounds.rounds import RoundsRequest
from .beside import fit_persistence
from .counts import MAX_DEPTHS, MOST_FITTED, Told, count_depths, told_by
from .difficulty import NO_PERSISTENCE, DifficultyFit, Neighbours, fit_difficulty, neighbours, scores_by_kept
from .estimate import DepthFit, fit_depths, stated_depths
from .lengths import DraftLengths, fit_lengths, stated_lengths
from .walk import Floats

Ints = NDArray[np.int64]

MIN_ALIKE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIns:
    """Which requests stand for those without rounds.

    They are those of the same tag, or all if fewer than 8 of it have rounds, each as likely as it has tokens: then
    rounds over many texts have the mean of the recording, since poor requests have many rounds and good ones few.

    Attributes:
        group: `[R]` index into `members`, -1 for a request with rounds of its own.
        members: of each group, indices of requests.
        shares: of each group, the share of tokens up to and with each member.
    """

    group: Ints
    members: tuple[Ints, ...]
    shares: tuple[Floats, ...]

    def of(self, request: int, draw: float) -> int:
        """Whose acceptance a request has: its own, or by `draw` (0 to 1) that of one of its stand-ins."""
        group = int(self.group[request])
        if group < 0:
            return request
        return int(self.members[group][np.searchsorted(self.shares[group], draw, side="right")])


@dataclass(frozen=True, kw_only=True)  # without slots, for what is worked out at first use
class DrafterFit:
    """One drafter's estimate.

    Attributes:
        depths: acceptance by depth and request.
        decisions: `[D]` that the rates by depth were counted on.
        difficulty: of rounds, how it goes along a text; without persistence for a drafter that reads tokens only.
        window: most tokens that rounds are known to draft, up to 64.
        found: how alike neighbouring rounds are; None where no two are neighbours.
        typical: `[W + 1]` share of rounds of a typical request that keep at least 0, 1, ... W tokens.
        stand_ins: who stands for requests without rounds of their own.
        lengths: how much it drafts; None for one that was never seen to draft less than its window.
    """

    depths: DepthFit
    decisions: Floats
    difficulty: DifficultyFit
    window: int
    found: Neighbours | None
    typical: Floats
    stand_ins: StandIns
    lengths: DraftLengths | None

    @cached_property
    def persistence(self) -> float:
        """How slowly the difficulty of positions changes, see `beside`, 0 to 0.99; takes some milliseconds once."""
        if self.found is None or not self.found.chained:  # rounds that start everywhere are as alike as positions
            return self.difficulty.persistence
        hazards = self.depths.hazards(0.0)
        return fit_persistence(hazards, self.decisions, scores_by_kept(self.typical), self.found.wanted)


def fit_drafter(requests: Sequence[RoundsRequest], drafter: DrafterInfo) -> DrafterFit:
    """Estimate a drafter.

    Raises:
        ValueError: nothing is known of its acceptance.
    """
    if drafter.stated is not None:
        return _stated_fit(drafter.stated, drafter.window or 1, len(requests))
    told = told_by(requests, drafter)
    if not told.num_decisions:
        raise ValueError(f"recording must hold decisions of drafter {drafter.name} to draw others from, got none")
    counts = count_depths(told, len(requests))
    depths, decisions = fit_depths(counts), np.maximum((counts.agreed + counts.refused).sum(axis=0), 1.0)
    window = min(int((told.accepted + told.refused).max()), MAX_DEPTHS)
    survival = depths.survival(np.append(depths.beta, 0.0), window)
    # The order of drawn rounds says nothing of which parts of a text are difficult.
    in_place = drafter.by_start and _any_in_place(requests, drafter.name)
    found = neighbours(told.thinned(MOST_FITTED), survival[:-1]) if in_place else None
    difficulty = fit_difficulty(found, survival[-1]) if in_place else NO_PERSISTENCE
    stand_ins = _stand_ins(told, [request.tag for request in requests])
    lengths = fit_lengths(requests, drafter)
    return DrafterFit(
        depths=depths,
        decisions=decisions,
        difficulty=difficulty,
        window=window,
        found=found,
        typical=survival[-1],
        stand_ins=stand_ins,
        lengths=lengths,
    )


def _stated_fit(stated: StatedAcceptance, window: int, num_requests: int) -> DrafterFit:
    """What a log states, the same for every request and place."""
    nobody = StandIns(group=np.full(num_requests, -1, np.int64), members=(), shares=())
    lengths = None if stated.drafting == 1.0 else stated_lengths(stated.drafting, num_requests)
    depths = stated_depths(np.array(stated.hazards), num_requests)
    window = min(window, MAX_DEPTHS)
    return DrafterFit(
        depths=depths,
        decisions=np.ones(len(stated.hazards)),
        difficulty=NO_PERSISTENCE,
        window=window,
        found=None,
        typical=depths.survival(np.zeros(1), window)[0],
        stand_ins=nobody,
        lengths=lengths,
    )


def _any_in_place(requests: Sequence[RoundsRequest], name: str) -> bool:
    """Whether the log says of any round where it stood."""
    return any(not one.rounds[name].where_placed.all() for one in requests if name in one.rounds)


def _stand_ins(told: Told, tags: list[str]) -> StandIns:
    tokens = np.bincount(told.request, told.accepted + 1, minlength=len(tags))
    known = np.flatnonzero(tokens > 0)
    alike: dict[str, list[int]] = {}
    for index in known.tolist():
        alike.setdefault(tags[index], []).append(index)
    names = sorted({tags[index] for index in np.flatnonzero(tokens == 0).tolist()})
    enough = [np.array(alike.get(name, []), np.int64) for name in names]
    members = tuple(found if len(found) >= MIN_ALIKE else known for found in enough)
    number = {name: index for index, name in enumerate(names)}
    group = [-1 if own > 0 else number[tag] for own, tag in zip(tokens.tolist(), tags, strict=True)]
    shares = tuple(np.cumsum(tokens[found]) / tokens[found].sum() for found in members)
    return StandIns(group=np.array(group, np.int64), members=members, shares=shares)
