"""The fastest chain among many: the best of those given, then the best next to it until there is none better.

Local ascent finds the best of what is near a start, so it is begun at the fastest chains of several sets of members.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ....policies.chain_notation import ChainSpec

Seconds = Callable[[ChainSpec], float]
Moves = Callable[[ChainSpec], Iterable[ChainSpec]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """What a search tried.

    Attributes:
        chains: fastest first; of equally fast ones in the order in which they were tried.
        seconds: for each token of output, > 0.
    """

    chains: tuple[ChainSpec, ...]
    seconds: tuple[float, ...]

    @property
    def best(self) -> ChainSpec:
        """The fastest."""
        return self.chains[0]

    def unlike(self, count: int) -> tuple[ChainSpec, ...]:
        """The fastest chains no two of which have the same members and the same lowest window, so many at most."""
        fastest: dict[tuple[tuple[str, ...], tuple[int, ...]], ChainSpec] = {}
        for chain in self.chains:
            fastest.setdefault((chain.members, chain.windows[:1]), chain)
        return tuple(fastest.values())[:count]

    def of_each_members(self) -> tuple[ChainSpec, ...]:
        """The fastest chain of each set of members, fastest first."""
        fastest: dict[tuple[str, ...], ChainSpec] = {}
        for chain in self.chains:
            fastest.setdefault(chain.members, chain)
        return tuple(fastest.values())


class Search:
    """Remembers what was tried.

    Args:
        seconds: of a chain, for each token of output; asked once for each.
    """

    def __init__(self, seconds: Seconds) -> None:
        self._seconds = seconds
        self._tried: dict[ChainSpec, float] = {}

    def fastest(self, chains: Iterable[ChainSpec]) -> ChainSpec:
        """Try chains, at least one, and return the fastest of them; of equals the first."""
        return min(chains, key=self._of)

    def ascend(self, start: ChainSpec, moves: Sequence[Moves]) -> ChainSpec:
        """Go to the fastest neighbour while there is a faster one; later moves are tried where earlier ones end."""
        found, turn = start, 0
        while turn < len(moves):
            better = self.fastest([found, *moves[turn](found)])
            turn = turn + 1 if better == found else 0
            found = better
        return found

    def ranked(self) -> Ranked:
        """All that was tried."""
        return ranked(self._tried)

    def _of(self, chain: ChainSpec) -> float:
        seconds = self._tried.get(chain)
        if seconds is None:
            seconds = self._tried[chain] = self._seconds(chain)
        return seconds


def ranked(tried: Mapping[ChainSpec, float]) -> Ranked:
    """Chains by their seconds."""
    chains = sorted(tried, key=tried.__getitem__)
    return Ranked(chains=tuple(chains), seconds=tuple(tried[chain] for chain in chains))
