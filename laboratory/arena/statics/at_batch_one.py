"""Static chains with one request at a time: each is played once for a recording, and priced for every ladder."""

from dataclasses import replace
from functools import partial

from ....policies.chain_notation import ChainSpec
from ....policies.lossless.chain import Chain
from ....sim.cost.base import CostModel
from ....sim.replay_tables import ReplayTables
from ....sim.simulate import Scenario, simulate
from ....sim.tries.request_tables import RequestTables
from ....sim.tries.tables import TrieTables
from .family import Family
from .forwards import ForwardKinds, RunForwards, UnitCost
from .search import Ranked, Search, Seconds

SAMPLE_TOKENS = 1_000  # of output, about: what is tried first is tried on a sample of the requests
STARTS = 3  # sets of members that the ascent on the sample begins with
FINALISTS = 10  # unlike chains of the sample that are played over all requests


class PlayedChains:
    """Runs of static chains over a recording, one request at a time.

    Args:
        tables: the recording.
        seed: of what has to be modelled.
    """

    def __init__(self, tables: ReplayTables, *, seed: int = 0) -> None:
        self._scenario = Scenario(tables=tables, cost=UnitCost(), seed=seed)
        self._kinds = ForwardKinds(tables.pool)
        self._runs: dict[ChainSpec, RunForwards] = {}
        # Held, so that they are not built again for every chain.
        self._held: list[RequestTables] = []
        if isinstance(tables, TrieTables):
            self._held = [tables.of(request.request_id) for request in tables.trace.requests]

    def __len__(self) -> int:
        """Chains that were played."""
        return len(self._runs)

    def seconds(self, cost: CostModel, chain: ChainSpec) -> float:
        """For each token of output at a cost; raises as `ForwardKinds.seconds`."""
        run = self._runs.get(chain)
        if run is None:
            name = str(chain)
            log = simulate(self._scenario, Chain(self._scenario.tables.pool, name), name)
            run = self._runs[chain] = self._kinds.count(log)
        return self._kinds.seconds(run, cost) / run.tokens


class ChainSearch:
    """Seeks the best static chains of a recording at one cost after another.

    Args:
        tables: the recording.
        seed: of what has to be modelled.

    Attributes:
        family: of the recording's pool.
        whole: runs over all requests.
        sample: runs over a part of the requests of each tag, the same as `whole` where there are few.
    """

    def __init__(self, tables: ReplayTables, *, seed: int = 0) -> None:
        self.family = Family(tables.pool)
        self.whole = PlayedChains(tables, seed=seed)
        some = sampled(tables)
        self.sample = self.whole if some is tables else PlayedChains(some, seed=seed)

    def best(self, cost: CostModel) -> Ranked:
        """The fastest at a cost, and whatever else was played over all requests to find it."""
        return seek(self.family, sample=partial(self.sample.seconds, cost), whole=partial(self.whole.seconds, cost))


def seek(family: Family, *, sample: Seconds, whole: Seconds) -> Ranked:
    """The fastest chain of a family, and whatever else was tried over all requests to find it.

    Args:
        family: of chains.
        sample: seconds over a sample of the requests, by which a few are chosen.
        whole: over all of them.
    """
    rough = Search(sample)
    rough.fastest(family.coarse())
    starts = rough.ranked().of_each_members()
    with_lookups = [chain for chain in starts if family.looks_up(chain)]
    for start in dict.fromkeys([*starts[:STARTS], *with_lookups[:1]]):
        rough.ascend(start, (family.windows_next, family.windows_near))
    rough.ascend(rough.ranked().best, (family.windows_next, family.windows_near, family.members_near))
    found = rough.ranked()
    final = Search(whole)
    finalists = [*found.unlike(FINALISTS), *found.of_each_members()[:STARTS], family.plain]
    final.ascend(final.fastest(dict.fromkeys(finalists)), (family.windows_next,))
    return final.ranked()


def sampled(tables: ReplayTables) -> ReplayTables:
    """Some of the requests of an exact recording: as large a part of each tag, evenly spread over its requests."""
    if not isinstance(tables, TrieTables):
        return tables
    requests = tables.trace.requests
    tokens = sum([len(tables.of(request.request_id).trunk_tokens) for request in requests])
    every = tokens // SAMPLE_TOKENS
    by_tag = sorted(requests, key=lambda request: request.tag)
    return TrieTables(replace(tables.trace, requests=by_tag[::every])) if every > 1 else tables
