"""The best static chain of a cell in hindsight, and what it did there."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import product

from ....policies.chain_notation import ChainSpec
from ....policies.spec import PolicySpec
from ..cell import ArenaCell
from ..loads import load
from ..play import play
from ..played import BEST_STATIC, Played
from ..stage.recording_stage import RecordingStage
from .at_batch_one import ChainSearch
from .search import Ranked, Search

REPLAYED = 3  # chains that another order of the requests chooses among
CANDIDATES = 8  # of the search with one request at a time that other loads begin with
NARROW = (1, 2, 3, 4)  # windows of two levels that they begin with besides, of
DRAFTERS = 2  # members that are fastest alone below the target


class CellStatics:
    """The best static chains of all cells of one recording; searches are made once for each ladder.

    Searches are made in the recorded order of the requests. With one request at a time that is `ChainSearch`; under
    another load its `CANDIDATES` best, the target alone and two levels with `NARROW` windows are played there, and from
    the fastest of them windows are changed by one while that pays. Another order of the requests takes the fastest of
    the `REPLAYED` best.

    Args:
        stage: the recording.
    """

    def __init__(self, stage: RecordingStage) -> None:
        self._stage = stage
        self._ranked: dict[str, Ranked] = {}
        self._under_load: dict[ArenaCell, Ranked] = {}

    @cached_property
    def _search(self) -> ChainSearch:
        return ChainSearch(self._stage.tables(0))

    def best(self, cell: ArenaCell, seed: int) -> Played:
        """What the best chain did at a seed, as the policy `best-static`.

        Raises:
            ValueError: as `play`.
        """
        runs = _Runs(self._stage, cell, seed)
        chains = self._of(cell).chains[: REPLAYED if seed else 1]
        return runs.best_static(Search(runs.seconds).fastest(chains))

    def _of(self, cell: ArenaCell) -> Ranked:
        if load(cell.load).batch == 1:
            return self._of_ladder(cell.ladder)
        if cell not in self._under_load:
            search = Search(_Runs(self._stage, cell, 0).seconds)
            found = search.fastest(dict.fromkeys(self._candidates(self._of_ladder(cell.ladder))))
            search.ascend(found, (self._search.family.windows_next,))
            self._under_load[cell] = search.ranked()
        return self._under_load[cell]

    def _candidates(self, ranked: Ranked) -> Iterable[ChainSpec]:
        yield from ranked.chains[:CANDIDATES]
        yield self._search.family.plain
        two_levels = [chain.members for chain in ranked.of_each_members() if len(chain.members) == 2]
        for members, window in product(two_levels[:DRAFTERS], NARROW):
            yield ChainSpec(members=members, windows=(window,))

    def _of_ladder(self, ladder: str) -> Ranked:
        if ladder not in self._ranked:
            self._ranked[ladder] = self._search.best(self._stage.cost(ladder))
        return self._ranked[ladder]


class _Runs:
    """What chains did in a cell at a seed."""

    def __init__(self, stage: RecordingStage, cell: ArenaCell, seed: int) -> None:
        self._stage, self._cell, self._seed = stage, cell, seed
        self._runs: dict[ChainSpec, Played] = {}

    def seconds(self, chain: ChainSpec) -> float:
        """For each token of output."""
        played = self._of(chain)
        return played.seconds / played.tokens

    def best_static(self, chain: ChainSpec) -> Played:
        """The run of a chain under the name of the best."""
        return replace(self._of(chain), policy=BEST_STATIC, chain=str(chain))

    def _of(self, chain: ChainSpec) -> Played:
        if chain not in self._runs:
            self._runs[chain] = play(self._stage, self._cell, PolicySpec.parse(str(chain)), self._seed)
        return self._runs[chain]
