"""The best window in every round, or the best chain, known in advance: the bounds that regret is measured against.

No published policies: the least total seconds over the answer among all sequences of rounds of a stated set of chains.
The best window bounds all that choose windows of one drafter: its set is the target alone and `draft:n/target`.
A round is worth what it makes of the next ones, too: see `least_seconds`.
"""

from collections.abc import Iterator
from itertools import combinations, product
from typing import ClassVar

from ...arguments import check_least, check_within
from ...decoding.pool import Pool
from ..about import About
from ..lossless.chain import Chain
from ..parts.default_members import drafter_of
from .foresight import Foresight
from .oracle import WINDOWS, Oracle
from .rounds import Round, answered

# Windows below the last one, in chains of three and more members.
LOWER_WINDOWS = (1, 2, 3, 4, 6, 8)


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
