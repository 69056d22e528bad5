"""The best static chain of a cell in hindsight, found by search, and its run.

The family searched is the target alone, every other member at windows 1 to 16 below the target, prompt lookup too, and
every chain of more levels whose upper members can judge, at windows 1 to 16 each. Local ascent finds the best near a
start, so it begins at the fastest chains of several sets of members.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise, product

from paceline.decoding.pool import Pool
from paceline.policies.by_name import PolicySpec
from paceline.policies.chain_text import ChainSpec
from paceline.policies.fixed import Chain
from paceline.reports.validation import total_s
from paceline.sim.contexts import TrieTables
from paceline.sim.replay_tables import ReplayTables
from paceline.sim.simulate import Scenario, simulate

from .cells import ArenaCell, load
from .play import BEST_STATIC, Played, RecordingStage, play

MOST = 16  # tokens of a window
TWO_LEVELS = (1, 2, 3, 4, 6, 8, 12, 16)
LOWER, UPPER = (1, 3, 6, 12), (2, 5, 10)
LOOKED_UP, ABOVE_LOOKUP = (6,), (3, 8)
FOUR_LEVELS = ((3, 3, 6), (6, 6, 10))
ENTRY = (2, 6)  # windows of a newly added member
STEPS = (-2, -1, 1, 2)  # of a window


class ChainFamily:
    """All static chains of a pool."""

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
        """Every pair of members that can be below the target, with or without model-free members."""
        for low, high in combinations(self._below, 2):
            if self._verifies(high) and self._pool.members[self._pool.level(low)].model_free == lookups:
                for windows in product(lower, upper):
                    yield ChainSpec(members=(low, high, self._target), windows=windows)

    def coarse(self) -> Iterator[ChainSpec]:
        """Some chains of up to four levels, to start with."""
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
        for name in self._below:  # a drafter before others lengthens what they accept
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


Seconds = Callable[[ChainSpec], float]
Moves = Callable[[ChainSpec], Iterable[ChainSpec]]


class Search:
    """Evaluates each chain once: seconds per output token."""

    def __init__(self, seconds: Seconds) -> None:
        self._seconds = seconds
        self.tried: dict[ChainSpec, float] = {}  # seconds, > 0, in the order in which chains were tried

    def fastest(self, chains: Iterable[ChainSpec]) -> ChainSpec:
        """Try chains, at least one, and return the fastest of them; the first of equal ones."""
        return min(chains, key=self._of)

    def ascend(self, start: ChainSpec, moves: Sequence[Moves]) -> ChainSpec:
        """Go to the fastest neighbour while there is a faster one; later moves are tried where earlier ones end."""
        found, turn = start, 0
        while turn < len(moves):
            better = self.fastest([found, *moves[turn](found)])
            turn = turn + 1 if better == found else 0
            found = better
        return found

    def _of(self, chain: ChainSpec) -> float:
        if chain not in self.tried:
            self.tried[chain] = self._seconds(chain)
        return self.tried[chain]

    @property
    def chains(self) -> tuple[ChainSpec, ...]:
        """All tried chains, fastest first; equally fast ones in the order in which they were tried."""
        return tuple(sorted(self.tried, key=self.tried.__getitem__))

    def unlike(self, count: int) -> tuple[ChainSpec, ...]:
        """The fastest chains, at most `count`, no two with the same members and the same lowest window."""
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


SAMPLE_TOKENS = 1_000  # output tokens, about, of a sample of the requests for first tries
STARTS = 3  # sets of members from which the ascent on the sample starts
FINALISTS = 10  # different chains of the sample that are played over all requests


def best_static(scenario: Scenario) -> Search:
    """The fastest chains of a scenario in hindsight, and all others that were run over all requests to find them."""
    some, family = replace(scenario, tables=sampled(scenario.tables)), ChainFamily(scenario.tables.pool)
    with_requests = [each for each in (some.tables, scenario.tables) if isinstance(each, TrieTables)]
    held = [each.of(request.request_id) for each in with_requests for request in each.trace.requests]
    found = seek(family, sample=partial(seconds_of, some), whole=partial(seconds_of, scenario))
    del held  # held until now, so that tables of requests are not built again for every chain
    return found


def seconds_of(scenario: Scenario, chain: ChainSpec) -> float:
    """Seconds per output token of a run."""
    name = str(chain)
    log = simulate(scenario, Chain(scenario.tables.pool, name), name)
    return total_s(log) / int(log.requests["emitted_tokens"].sum())


def seek(family: ChainFamily, *, sample: Seconds, whole: Seconds) -> Search:
    """The fastest chain of a family, and all others that were tried over all requests to find it.

    A few are chosen by `sample`, their seconds over some of the requests.
    """
    rough = Search(sample)
    rough.fastest(family.coarse())
    starts = rough.of_each_members()
    with_lookups = [chain for chain in starts if family.looks_up(chain)]
    for start in dict.fromkeys([*starts[:STARTS], *with_lookups[:1]]):
        rough.ascend(start, (family.windows_next, family.windows_near))
    rough.ascend(rough.chains[0], (family.windows_next, family.windows_near, family.members_near))
    final = Search(whole)
    finalists = [*rough.unlike(FINALISTS), *rough.of_each_members()[:STARTS], family.plain]
    final.ascend(final.fastest(dict.fromkeys(finalists)), (family.windows_next,))
    return final


def sampled(tables: ReplayTables) -> ReplayTables:
    """Some of the requests of an exact recording: an equal share of each tag, evenly spread over its requests."""
    if not isinstance(tables, TrieTables):
        return tables
    requests = tables.trace.requests
    tokens = sum([len(tables.of(request.request_id).trunk_tokens) for request in requests])
    every = tokens // SAMPLE_TOKENS
    by_tag = sorted(requests, key=lambda request: request.tag)
    return TrieTables(replace(tables.trace, requests=by_tag[::every])) if every > 1 else tables


REPLAYED = 3  # chains from which another order of the requests takes the fastest
CANDIDATES = 8  # of the search with one request at a time, with which other loads start
NARROW = (1, 2, 3, 4)  # windows of two levels with which they also start, of
DRAFTERS = 2  # members that are fastest alone below the target


class CellStatics:
    """The best static chains of all cells of one recording; searches are made once for each ladder.

    Searches are made in the recorded order of the requests. With one request at a time that is `best_static`; under
    another load its `CANDIDATES` best, the target alone and two levels with `NARROW` windows are played there, and from
    the fastest of them windows are changed by one while that helps. Another order of the requests takes the fastest of
    the `REPLAYED` best.
    """

    def __init__(self, stage: RecordingStage) -> None:
        self._stage = stage
        self._ladders: dict[str, Search] = {}
        self._under_load: dict[ArenaCell, Search] = {}

    def best(self, cell: ArenaCell, seed: int) -> Played:
        """The best chain's run at a seed, as the policy `best-static`; raises as `play`."""
        chains = self._of(cell).chains[: REPLAYED if seed else 1]
        chain = Search(partial(self._seconds, cell, seed)).fastest(chains)
        return replace(self._play(cell, seed, chain), policy=BEST_STATIC, chain=str(chain))

    def _of(self, cell: ArenaCell) -> Search:
        if load(cell.load).batch == 1:
            return self._of_ladder(cell.ladder)
        if cell not in self._under_load:
            family = ChainFamily(self._stage.tables(0).pool)
            search = self._under_load[cell] = Search(partial(self._seconds, cell, 0))
            found = search.fastest(dict.fromkeys(self._candidates(family, self._of_ladder(cell.ladder))))
            search.ascend(found, (family.windows_next,))
        return self._under_load[cell]

    def _candidates(self, family: ChainFamily, alone: Search) -> Iterable[ChainSpec]:
        yield from alone.chains[:CANDIDATES]
        yield family.plain
        two_levels = [chain.members for chain in alone.of_each_members() if len(chain.members) == 2]
        for members, window in product(two_levels[:DRAFTERS], NARROW):
            yield ChainSpec(members=members, windows=(window,))

    def _of_ladder(self, ladder: str) -> Search:
        if ladder not in self._ladders:
            self._ladders[ladder] = best_static(Scenario(tables=self._stage.tables(0), cost=self._stage.cost(ladder)))
        return self._ladders[ladder]

    def _seconds(self, cell: ArenaCell, seed: int, chain: ChainSpec) -> float:
        played = self._play(cell, seed, chain)
        return played.seconds / played.tokens

    def _play(self, cell: ArenaCell, seed: int, chain: ChainSpec) -> Played:
        return play(self._stage, cell, PolicySpec.parse(str(chain)), seed)
