"""The best window in every round, or the best chain, known in advance: the bounds that regret is measured against.

No published policies: the least total seconds over the answer among all sequences of rounds of a stated set of chains.
The best window bounds all that choose windows of one drafter: its set is the target alone and `draft:n/target`.
A round is worth what it makes of the next ones, too: see `least_seconds`. Every oracle is shown the future, plans each
request from end to end, then follows the plan.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import combinations, product
from typing import ClassVar

from ...arguments import check_least, check_within
from ...decoding.contract import Outcome, Step
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..lossless.chain import Chain
from ..parts.default_members import drafter_of
from .attempt import Round, answered
from .foresight import Foresight
from .least_seconds import Plan, least_seconds

WINDOWS = "[1, 1,000]"  # tokens; far beyond what is recorded, since every window shorter than the longest is tried too
# Windows below the last one, in chains of three and more members.
LOWER_WINDOWS = (1, 2, 3, 4, 6, 8)


class Oracle(ABC):
    """A policy that sees ahead.

    Plans are made for batch 1 and without seconds for decisions; a larger batch follows the same plans.

    Args:
        pool: the members.
    """

    def __init__(self, pool: Pool) -> None:
        self._alone = Chain(pool, pool.target)
        self._plans: dict[str, Plan] | None = None
        self._running: dict[str, Chain] = {}

    @abstractmethod
    def rounds(self, foresight: Foresight, request_id: str, position: int) -> list[Round]:
        """What may be done at a position, at least one round."""
        ...

    def foresee(self, foresight: Foresight) -> dict[str, float]:
        """Plan every request anew; whoever runs the policy calls it before the first step.

        Returns:
            Seconds that each request will take at batch 1.
        """
        self._running.clear()
        self._plans = {name: self._planned(foresight, name) for name in foresight.request_ids}
        return {name: plan.seconds for name, plan in self._plans.items()}

    def decide(self, seen: Observation) -> Step:
        """As the chain that was planned for this round; after the recorded answer, the target alone.

        Raises:
            ValueError: nobody called `foresee`.
        """
        request_id = seen.request_id
        chain = self._running.get(request_id)
        if chain is None:
            if self._plans is None:
                raise ValueError("an oracle sees ahead, which only a recording can grant")
            planned = self._plans[request_id].rounds.get(seen.num_emitted)
            chain = self._running[request_id] = self._alone if planned is None else planned.chain
        return chain.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """A round that has committed is over."""
        if outcome.num_emitted:
            self._running.pop(outcome.request_id, None)

    def _planned(self, foresight: Foresight, request_id: str) -> Plan:
        positions = range(foresight.num_tokens(request_id))
        offered = [self.rounds(foresight, request_id, position) for position in positions]
        return least_seconds(foresight, request_id, offered)


class OracleWindow(Oracle):
    """The window of each round that makes the answer cheapest, seen in the recording.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        most: longest window, 1 to 1,000; the target alone is always among the choices.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about: ClassVar[About] = About(lossless=True, members="a member below the target", oracle=True)

    def __init__(self, pool: Pool, *, draft: str | None = None, most: int = 16) -> None:
        check_within("most", most, WINDOWS)
        drafter = drafter_of(pool, draft)
        super().__init__(pool)
        self._chains = [Chain(pool, f"{drafter}:{window}/{pool.target}") for window in range(1, most + 1)]

    def rounds(self, foresight: Foresight, request_id: str, position: int) -> list[Round]:
        """The target alone and every window."""
        chains = (self._alone, *self._chains)
        return answered(*[foresight.round_of(request_id, position, chain) for chain in chains])


class OracleChain(Oracle):
    """The chain of each round that makes the answer cheapest, seen in the recording.

    The set: the target alone; each member in front of it with every window up to `most`; chains of three and more
    members in which the last window is any up to `most` and those before it are 1, 2, 3, 4, 6 or 8, up to `most`.

    Args:
        pool: the members.
        most: longest window, 1 to 1,000.
        levels: most members of a chain, >= 2. Planning takes several times as long with each.

    Raises:
        ValueError: an option out of range, or a pool that has nothing below its target.
    """

    about: ClassVar[About] = About(lossless=True, members="a member below the target", oracle=True)

    def __init__(self, pool: Pool, *, most: int = 16, levels: int = 3) -> None:
        check_within("most", most, WINDOWS)
        check_least("levels", levels, 2)
        if not pool.target_level:
            raise ValueError(f"the pool has no member below its target {pool.target}")
        super().__init__(pool)
        below = pool.names[:-1]
        flat = [f"{name}:{window}/{pool.target}" for name in below for window in range(1, most + 1)]
        self._flat = [self._alone, *(Chain(pool, spec) for spec in flat)]
        self._tall = [
            Chain(pool, spec) for size in range(2, min(levels, len(pool.names))) for spec in _tall(pool, size, most)
        ]

    def rounds(self, foresight: Foresight, request_id: str, position: int) -> list[Round]:
        """All of the set; of chains with three members and more, what their last window makes of them."""
        found = answered(*[foresight.round_of(request_id, position, chain) for chain in self._flat])
        for chain in self._tall:
            found += foresight.climbs(request_id, position, chain)
        return found


def _tall(pool: Pool, size: int, most: int) -> Iterator[str]:
    """Chains of `size` members below the target whose last window is `most`."""
    names = [member.name for member in pool.members[:-1]]
    lower = [window for window in LOWER_WINDOWS if window <= most]
    for members in combinations(names, size):
        if not all(pool.members[pool.level(name)].verifies for name in members[1:]):
            continue
        for windows in product(lower, repeat=size - 1):
            parts = [f"{name}:{window}" for name, window in zip(members, (*windows, most), strict=True)]
            yield "/".join([*parts, pool.target])
