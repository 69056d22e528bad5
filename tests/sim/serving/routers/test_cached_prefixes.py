"""What a router sees of all caches at once is what it sees of each."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paceline.sim.serving.limits import EngineLimits, KvLimits
from paceline.sim.serving.routers import Dispatcher, ReplicaSignals, RouterError
from paceline.traces.workloads.arrival import Arrival
from paceline.traces.workloads.sessions import Node, SessionGraph, Turn, Waits, runs_of

from ..engine.both_ways import tight
from ..engine.lined_costs import LinedLineCost
from ..engine.served_runs import Run, limits_of, pico, target_only
from ..graphs.random_graphs import Begun, begun_graphs
from .test_dispatcher import REQUEST, Replica

NUM_REPLICAS = 3


class Comparing:
    """Asks both ways, in either order, and sends requests on in turn."""

    reads_prefixes = True

    def __init__(self, all_first):
        self._all_first = all_first
        self.seen = []

    def pick(self, arrival, seen):
        if self._all_first:
            found = dict(seen.cached)
        each = [seen.cached_tokens(replica) for replica in range(NUM_REPLICAS)]
        if not self._all_first:
            found = dict(seen.cached)
        assert list(found.items()) == [(replica, tokens) for replica, tokens in enumerate(each) if tokens]
        self.seen.append((each, [seen.signals[replica] for replica in range(NUM_REPLICAS)]))
        return len(self.seen) % NUM_REPLICAS


def seen_by_all_ways(sessions, tables, policy, limits, stale_ps):
    """What routers saw that ask for all replicas first, for each first, and of single steps."""
    all_seen = []
    for all_first, stepwise in ((True, False), (False, False), (True, True)):
        router = Comparing(all_first)
        Run(
            sessions,
            tables,
            policy,
            limits,
            num_replicas=NUM_REPLICAS,
            unit_tokens=8,
            cost=LinedLineCost(tables),
            outputs=None,
            stepwise=stepwise,
            dispatch=lambda replicas, router=router: Dispatcher(router, "comparing", replicas, stale_ps),
        ).go()
        all_seen.append(router.seen)
    return all_seen


# No shrinking: a case takes long.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_all_at_once_are_those_of_each(data):
    policy = data.draw(st.sampled_from(["target", "draft:4/target", "adaptive"]))
    tables = target_only() if policy == "target" else pico()
    sessions = data.draw(begun_graphs(unit_tokens=8))
    limits = data.draw(tight(tables))
    stale_ps = data.draw(st.sampled_from([0, 0, 10**8]))
    first, each, steps = seen_by_all_ways(sessions, tables, policy, limits, stale_ps)
    assert first == each == steps


@pytest.mark.parametrize("policy", ["target", "draft:4/target"])
def test_a_snapshot_holds_what_is_being_written(policy):
    """A request that follows an answer as soon as it is there was routed by the snapshot of shortly before."""
    tables = target_only() if policy == "target" else pico()
    prompt, written = tuple(range(1, 6)), tuple(range(6, 11))
    turns = [
        Turn(request_id="first", wait_ps=0, prompt_tokens=40, output_tokens=40, new_blocks=runs_of(prompt)),
        Turn(
            request_id="next", wait_ps=0, prompt_tokens=88, output_tokens=1, new_blocks=runs_of((*prompt, *written, 11))
        ),
    ]
    graph = SessionGraph(nodes=(Node(turn=turns[0], answer=written), Node(turn=turns[1], waits=(Waits(0),))))
    kv = KvLimits(num_blocks=1_000, block_tokens=8, prefix_cache=True)
    limits = EngineLimits(max_num_seqs=4, token_budget=200, kv=dict.fromkeys(tables.pool.names, kv))
    first, each, steps = seen_by_all_ways(Begun([(0, graph)]), tables, policy, limits, 10**8)
    assert first == each == steps
    of_first = first[1][0][1]
    assert 40 < of_first < 80


@pytest.mark.parametrize("stepwise", [False, True])
def test_routers_see_the_share_of_the_member_with_the_least(stepwise):
    """A draft with less memory than the target makes its replica full."""
    shares = []

    class Looking:
        def pick(self, arrival, seen):
            shares.append(seen.signals[0].free_kv_share)
            return 0

    limits = limits_of(pico(), num_blocks=100)
    limits = replace(limits, kv=limits.kv | {"draft": KvLimits(num_blocks=20, block_tokens=4)})
    arrivals = [Arrival("reads", 0, 40, 20), Arrival("asks", 10**9, 1, 1)]
    Run(
        arrivals,
        pico(),
        "draft:4/target",
        limits,
        stepwise=stepwise,
        dispatch=lambda replicas: Dispatcher(Looking(), "looking", replicas),
    ).go()
    assert shares == [1, 8 / 20]


def test_signals_are_read_once_where_they_are_looked_at():
    """Of all replicas; a router that looks at none reads none."""
    asked = []

    class Told(Replica):
        def signals(self):
            asked.append(self.waiting)
            return super().signals()

    class Looking:
        def pick(self, arrival, seen):
            assert len(seen.signals) == 3
            assert seen.signals[1].waiting == seen.signals[-2].waiting == seen.signals[1:2][0].waiting == 1
            return 1

    class Blind:
        def pick(self, arrival, seen):
            return 1

    replicas = [Told() for _ in range(3)]
    for waiting, replica in enumerate(replicas):
        replica.waiting = waiting
    Dispatcher(Blind(), "blind", replicas).pick(REQUEST)
    assert asked == []
    Dispatcher(Looking(), "looking", replicas).pick(REQUEST)
    assert asked == [0, 1, 2]
    assert isinstance(replicas[0].signals(), ReplicaSignals)


def test_who_does_not_say_that_it_reads_prefixes_is_told():
    class Silent:
        def pick(self, arrival, seen):
            return len(seen.cached)

    with pytest.raises(RouterError, match="does not say reads_prefixes"):
        Dispatcher(Silent(), "silent", [Replica()], 10).pick(REQUEST)
