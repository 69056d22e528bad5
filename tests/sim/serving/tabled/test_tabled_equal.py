"""Rounds played once equal steps, picosecond for picosecond, whatever comes and under whatever limits."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paceline.runs.serving import ROUNDS, STEP_BY_STEP
from paceline.sim.cost.base import DraftTerms
from paceline.traces.meta import DraftBlock
from paceline.traces.workloads.arrival import Arrival

from ..engine.served_runs import LineCost, Run, limits, limits_of, pico, some_rounds
from ..jumps.both_paths import told
from ..jumps.lined_costs import COSTS, LinedLineCost
from ..jumps.test_equal import ROUTERS, Turns, sessions

TRIES = ("draft:4/target", "draft:3/mid:6/target", "draft:1/target", "mid:7/target", "ngram:3/target",
         "ngram:2/mid:5/target", "draft:2/mid:4/slim:6/target", "confident,below=0.6,most=5")  # fmt: skip
ROUNDS_POLICIES = ("feature:4/target", "tokens:2/target", "feature:6/target")


def check(arrivals, tables, policy, **options):
    """Compare both paths; returns the run of the rounds."""
    options = {"outputs": None, "cost": LinedLineCost(tables)} | options
    rounds = Run(arrivals, tables, policy, **options)
    found = told(rounds)
    steps = Run(arrivals, tables, policy, stepwise=True, **options)
    assert found == told(steps)
    assert set(rounds.served.paths) == {ROUNDS}
    assert set(steps.served.paths) == {f"{STEP_BY_STEP}: asked for"}
    return rounds


@st.composite
def tight(draw, tables):
    """Limits of all kinds, with prefix caches that lose the end of a hit among them."""
    found = draw(limits(tables))
    drop_units = draw(st.sampled_from([0, 0, 1]))
    kv = {name: replace(member, drop_units=drop_units) for name, member in found.kv.items()}
    if draw(st.booleans()):
        found = replace(found, token_budget=4096)
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(kv)))
        kv[name] = replace(kv[name], num_blocks=10**6, prefix_cache=draw(st.booleans()))
    return replace(found, kv=kv)


@st.composite
def cases(draw):
    """A recording, a policy that replays it, and what it costs."""
    tables = draw(st.sampled_from([pico(), pico(), some_rounds()]))
    policy = draw(st.sampled_from(TRIES if tables is pico() else ROUNDS_POLICIES))
    return tables, policy, draw(st.sampled_from([*COSTS, LineCost]))(tables)


# No shrinking: a case takes long, and what differs is told by its first difference.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_rounds_equal_steps(data):
    tables, policy, cost = data.draw(cases())
    unit_tokens = data.draw(st.sampled_from([0, 8]))
    check(
        data.draw(sessions(unit_tokens=unit_tokens)),
        tables,
        policy,
        limits=data.draw(tight(tables)),
        num_replicas=data.draw(st.integers(1, 3)),
        router=data.draw(st.sampled_from(ROUTERS)),
        stale_ps=data.draw(st.sampled_from([0, 0, 10**9, 10**7])),
        unit_tokens=unit_tokens,
        cost=cost,
        horizon_ps=data.draw(st.sampled_from([None, None, 1, 10**8, 10**9, 3 * 10**9])),
    )


@pytest.mark.parametrize("policy", ["draft:4/target", "draft:3/mid:6/target", "confident,below=0.6,most=5"])
def test_requests_side_by_side_are_added_up(policy):
    """Many cycles between two states that are told, with memory and budget for all; equal all the same."""
    tables = pico()
    arrivals = [Arrival(f"q{index}", index * 3 * 10**10, 9 + 7 * index % 50, 40 + index % 90) for index in range(40)]
    for prefix_cache in (False, True):
        ample = limits_of(tables, max_num_seqs=64, prefix_cache=prefix_cache)
        told_of = check(arrivals, tables, policy, limits=ample).log.meta.replicas[0]
        assert told_of.states < sum(member.forwards for member in told_of.members) / 4


class BlockCost(LinedLineCost):
    """Every drafter writes a whole draft in one forward."""

    fed = "text"

    def draft_terms(self, model):
        return None if model in ("slim", "target") else DraftTerms(0.0, None, DraftBlock(tokens=7, fed=self.fed))


class StatesCost(BlockCost):
    """They read the target's states."""

    fed = "block"


@pytest.mark.parametrize("policy", [*TRIES[:4], "draft:2/mid:4/slim:6/target"])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_rounds_equal_steps_where_a_draft_is_one_forward(policy, prefix_cache):
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


@pytest.mark.parametrize("policy", TRIES[:3])
def test_rounds_equal_steps_where_memory_is_short(policy):
    """Many requests are put back, with and without a prefix cache to find their blocks in again."""
    tables = pico()
    arrivals = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 30 + index % 30) for index in range(60)]
    for prefix_cache in (False, True):
        short = limits_of(tables, max_num_seqs=8, token_budget=32, num_blocks=30, prefix_cache=prefix_cache)
        log = check(arrivals, tables, policy, limits=short).log
        assert len(log.preemptions["request"]) > 20


def test_replicas_in_lockstep_take_turns():
    """Steps of all replicas end at the same instants, and so do requests that others follow at once."""
    tables = pico()
    arrivals = [Arrival(f"q{index}", 0, 8, 10 + 10 * (index % 3), turns=Turns(f"q{index}", 5, 0)) for index in range(9)]
    for router in ROUTERS:
        check(arrivals, tables, TRIES[0], num_replicas=3, router=router, cost=LinedLineCost(tables, context=0))


@pytest.mark.parametrize(
    ("policy", "options", "why"),
    [
        ("adaptive", {}, "policy adaptive does not say that pending tokens alone decide"),
        (TRIES[0], {"outputs": {}}, "tokens of answers are asked for"),
        (TRIES[0], {"stepwise": True}, "asked for"),
    ],
)
def test_what_keeps_from_playing_rounds_once_is_told(policy, options, why):
    tables = pico()
    run = Run([Arrival("q", 0, 5, 9)], tables, policy, **({"outputs": None} | options)).go()
    assert run.served.paths == (f"{STEP_BY_STEP}: {why}",)
    assert run.log.meta.replicas[0].path == run.served.paths[0]
