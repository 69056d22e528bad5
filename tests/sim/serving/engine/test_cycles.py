"""Cycles that are added up equal single steps, picosecond for picosecond, whatever comes and under whatever limits."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paceline.runs.serving import CYCLES, STEP_BY_STEP
from paceline.sim.cost.base import DraftTerms
from paceline.traces.meta import DraftBlock
from paceline.traces.workloads.arrival import Arrival

from .both_ways import ASKED, BY_PENDING, ROUTERS, Turns, cases, check, sessions, settings_of, tight, told
from .lined_costs import COSTS, LinedLineCost
from .served_runs import MICROSECOND, LineCost, Run, limits_of, pico, target_only, workloads


# No shrinking: a case takes long, and what differs is told by its first difference.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_both_ways_are_equal(data):
    (tables, policy, cost), unit_tokens = data.draw(cases()), data.draw(st.sampled_from([0, 8]))
    coming = data.draw(data.draw(st.sampled_from([workloads, sessions]))(unit_tokens=unit_tokens))
    check(coming, tables, policy, cost=cost, **data.draw(settings_of(tables, unit_tokens)))


@pytest.mark.parametrize("policy", BY_PENDING)
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_requests_side_by_side_are_added_up(policy, prefix_cache):
    """Many cycles between two states that are told, with memory and budget for all; equal all the same."""
    tables = pico()
    arrivals = [Arrival(f"q{index}", index * 3 * 10**10, 9 + 7 * index % 50, 40 + index % 90) for index in range(40)]
    ample = limits_of(tables, max_num_seqs=64, prefix_cache=prefix_cache, block_tokens=16)
    replica = check(arrivals, tables, policy, limits=ample).log.meta.replicas[0]
    assert replica.path == (CYCLES if policy.count("/") < 3 else STEP_BY_STEP)
    assert replica.states < sum(member.forwards for member in replica.members)


@pytest.mark.parametrize("policy", ASKED)
def test_batches_that_decode_for_long(policy):
    """A few requests come seldom, so that most steps are of all of them; memory is short, ample, or keeps prefixes."""
    tables = pico()
    tags = sorted({request.tag for request in tables.trace.requests})
    arrivals = [
        Arrival(f"q{index}", index // 3 * 3 * 10**11, 20 + index % 7, 90 + index % 50, tag=tags[index % len(tags)])
        for index in range(24)
    ]
    for memory in ({}, {"num_blocks": 80}, {"num_blocks": 80, "prefix_cache": True, "block_tokens": 5}):
        check(arrivals, tables, policy, limits=limits_of(tables, **memory), num_replicas=2, cost=LineCost(tables))


@pytest.mark.parametrize("policy", ["target", *BY_PENDING[1:4]])
def test_memory_that_is_short(policy):
    """Many requests are put back, with and without a prefix cache to find their blocks in again."""
    tables = pico()
    arrivals = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 30 + index % 30) for index in range(60)]
    for prefix_cache in (False, True):
        short = limits_of(tables, max_num_seqs=8, token_budget=32, num_blocks=30, prefix_cache=prefix_cache)
        log = check(arrivals, tables, policy, limits=short).log
        assert len(log.preemptions["request"]) > 20


@pytest.mark.parametrize("policy", ["target", "draft:4/target"])
def test_replicas_in_lockstep_take_turns(policy):
    """Steps of all replicas end at the same instants, and so do requests that others follow at once."""
    tables = pico()
    arrivals = [Arrival(f"q{index}", 0, 8, 10 + 10 * (index % 3), turns=Turns(f"q{index}", 5, 0)) for index in range(9)]
    for router in ROUTERS:
        check(arrivals, tables, policy, num_replicas=3, router=router, cost=LinedLineCost(tables, context=0))


class BlockCost(LinedLineCost):
    """Every drafter writes a whole draft in one forward."""

    fed = "text"

    def draft_terms(self, model):
        return None if model in ("slim", "target") else DraftTerms(0.0, None, DraftBlock(tokens=7, fed=self.fed))


class StatesCost(BlockCost):
    """They read the target's states."""

    fed = "block"


@pytest.mark.parametrize("policy", [*BY_PENDING[1:5], "draft:2/mid:4/slim:6/target"])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_drafts_in_one_forward(policy, prefix_cache):
    tables = pico()
    arrivals = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 30 + index % 30) for index in range(30)]
    bounds = limits_of(tables, max_num_seqs=8, token_budget=32, num_blocks=40, prefix_cache=prefix_cache)
    blocks, _, tokens = (
        check(arrivals, tables, policy, limits=bounds, cost=cost(tables)).log
        for cost in (BlockCost, StatesCost, LinedLineCost)
    )
    drafter = tables.pool.names.index(policy.partition(":")[0])
    forwards = [log.meta.replicas[0].members[drafter].forwards for log in (blocks, tokens)]
    assert 0 < forwards[0] < forwards[1] or ":1/" in policy


class Interrupts:
    """Stops a run when it is asked the n-th time."""

    def __init__(self, place):
        self.left = place

    def ended(self):
        pass

    def interrupted(self):
        self.left -= 1
        return self.left <= 0


@st.composite
def spread(draw):
    """Requests of which no two come at once."""
    waits = draw(st.lists(st.sampled_from([1, 150, 2_000, 10_000]), min_size=1, max_size=12))
    times = [sum(waits[: index + 1]) * MICROSECOND for index in range(len(waits))]
    lengths = st.tuples(st.integers(1, 40), st.integers(1, 60))
    return [Arrival(f"q{index}", at_ps, *draw(lengths)) for index, at_ps in enumerate(times)]


@given(st.data())
def test_an_interrupt_when_a_request_comes_is_a_horizon_at_that_instant(data):
    tables, arrivals = target_only(), data.draw(spread())
    place = data.draw(st.integers(1, len(arrivals)))
    at_ps = arrivals[place - 1].arrives_ps
    options = {
        "limits": data.draw(tight(tables)),
        "num_replicas": data.draw(st.integers(1, 3)),
        "cost": data.draw(st.sampled_from(COSTS))(tables),
    }
    *added, (*sums, stopped) = told(Run(arrivals, tables, watcher=Interrupts(place), **options))
    *steps, (*sums_of_steps, horizon) = told(Run(arrivals, tables, horizon_ps=at_ps, stepwise=True, **options))
    assert added[0].pop("stopped") == stopped == "interrupted"
    assert steps[0].pop("stopped") == horizon == "horizon"
    assert (added, sums) == (steps, sums_of_steps)


@given(st.data())
def test_what_an_interrupt_leaves_goes_together(data):
    """Wherever it comes: the log is checked as it is made, and requests have ended, wait or run."""
    tables, arrivals = target_only(), data.draw(spread())
    watcher = Interrupts(data.draw(st.integers(1, 2 * len(arrivals))))
    cost = data.draw(st.sampled_from(COSTS))(tables)
    log = Run(arrivals, tables, watcher=watcher, cost=cost, num_replicas=2).go().log
    assert log.meta.stopped or log.finished.all()
    assert (
        log.requests["emitted_tokens"].sum() == log.meta.levels[-1].own + (log.requests["first_token_at_ps"] >= 0).sum()
    )
