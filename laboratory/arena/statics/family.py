"""The static chains that a cell's best is sought among, and which are next to each other.

The family: the target alone; every other member at windows 1 to 16 below the target, prompt lookup too; and every chain
of more levels whose upper members can judge, at windows 1 to 16 each.
"""

from collections.abc import Iterator
from itertools import combinations, pairwise, product

from ....decoding.pool import Pool
from ....policies.chain_notation import ChainSpec

MOST = 16  # tokens of a window
TWO_LEVELS = (1, 2, 3, 4, 6, 8, 12, 16)
LOWER, UPPER = (1, 3, 6, 12), (2, 5, 10)
LOOKED_UP, ABOVE_LOOKUP = (6,), (3, 8)
FOUR_LEVELS = ((3, 3, 6), (6, 6, 10))
ENTRY = (2, 6)  # windows that a member gets where it comes in
STEPS = (-2, -1, 1, 2)  # of a window


class Family:
    """All static chains of a pool.

    Args:
        pool: the members.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        *self._below, self._target = pool.names

    @property
    def plain(self) -> ChainSpec:
        """The target alone."""
        return ChainSpec(members=(self._target,), windows=())

    def two_levels(self, windows: tuple[int, ...] = TWO_LEVELS) -> Iterator[ChainSpec]:
        """Every member below the target, at every one of `windows`."""
        for name, window in product(self._below, windows):
            yield ChainSpec(members=(name, self._target), windows=(window,))

    def three_levels(self, lower: tuple[int, ...], upper: tuple[int, ...], *, lookups: bool) -> Iterator[ChainSpec]:
        """Every pair of members that can stand below the target, with model-free members or without."""
        for low, high in combinations(self._below, 2):
            if self._verifies(high) and self._pool.members[self._pool.level(low)].model_free == lookups:
                for windows in product(lower, upper):
                    yield ChainSpec(members=(low, high, self._target), windows=windows)

    def coarse(self) -> Iterator[ChainSpec]:
        """Some of up to four levels, to begin with."""
        yield self.plain
        yield from self.two_levels()
        yield from self.three_levels(LOWER, UPPER, lookups=False)
        yield from self.three_levels(LOOKED_UP, ABOVE_LOOKUP, lookups=True)
        for below, windows in product(combinations(self._below, 3), FOUR_LEVELS):
            yield from self._legal(below, windows)

    def looks_up(self, chain: ChainSpec) -> bool:
        """Whether a model-free member drafts."""
        return self._pool.members[self._pool.level(chain.members[0])].model_free

    def windows_near(self, chain: ChainSpec) -> Iterator[ChainSpec]:
        """The same members with one window changed, or with all of them changed by one."""
        for place, step in product(range(len(chain.windows)), STEPS):
            yield from self._within(chain, _changed(chain.windows, place, step))
        for step in (-1, 1) if len(chain.windows) > 1 else ():
            yield from self._within(chain, tuple(window + step for window in chain.windows))

    def windows_next(self, chain: ChainSpec) -> Iterator[ChainSpec]:
        """The same members with one window longer or shorter by one."""
        for place, step in product(range(len(chain.windows)), (-1, 1)):
            yield from self._within(chain, _changed(chain.windows, place, step))

    def members_near(self, chain: ChainSpec) -> Iterator[ChainSpec]:
        """One member more, one less, or another one in its place."""
        below, windows = chain.members[:-1], chain.windows
        for place in range(len(below)):
            yield from self._legal(below[:place] + below[place + 1 :], windows[:place] + windows[place + 1 :])
            for name in self._below:
                yield from self._legal((*below[:place], name, *below[place + 1 :]), windows)
        for place, name, window in product(range(len(below) + 1), self._below, ENTRY):
            with_it = (*below[:place], name, *below[place:])
            yield from self._legal(with_it, (*windows[:place], window, *windows[place:]))
        wide = tuple(min(2 * window, MOST) for window in windows)
        for name in self._below:  # what drafts in front of others lengthens what they keep
            yield from self._legal((name, *below), (ENTRY[-1], *wide))

    def _within(self, chain: ChainSpec, windows: tuple[int, ...]) -> Iterator[ChainSpec]:
        if all(1 <= window <= MOST for window in windows):
            yield ChainSpec(members=chain.members, windows=windows)

    def _legal(self, below: tuple[str, ...], windows: tuple[int, ...]) -> Iterator[ChainSpec]:
        levels = [self._pool.level(name) for name in below]
        if all(low < high for low, high in pairwise(levels)) and all(map(self._verifies, below[1:])):
            yield ChainSpec(members=(*below, self._target), windows=windows)

    def _verifies(self, name: str) -> bool:
        return self._pool.members[self._pool.level(name)].verifies


def _changed(windows: tuple[int, ...], place: int, step: int) -> tuple[int, ...]:
    return (*windows[:place], windows[place] + step, *windows[place + 1 :])
