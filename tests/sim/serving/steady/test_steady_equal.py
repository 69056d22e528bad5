"""Steps of a batch that stays as it is equal single steps in every integer and every token, whatever policy asks."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paceline.runs.serving import STEP_BY_STEP
from paceline.sim.serving.steady_replica import SteadyReplica
from paceline.traces.workloads.arrival import Arrival

from ..engine.served_runs import LineCost, Run, limits, limits_of, pico, some_rounds, workloads
from ..jumps.both_paths import told
from ..jumps.lined_costs import COSTS
from ..jumps.test_equal import ROUTERS, sessions

TRIES = ("adaptive", "draft:4/target", "draft:3/mid:6/target", "ngram:3/target", "specrouter",
         "off-under-load", "goodput", "slo", "autotune", "via-sd", "via-sd-lossless", "early-commit", "cascade",
         "adaedl", "hedgespec", "specrouter,select=request",
         "per-tag,default=plain,math=adaptive,code=draft:2/target")  # fmt: skip
ROUNDS_POLICIES = ("adaptive", "feature:4/target")


def check(arrivals, tables, policy, **options):
    """Compare both ways; returns the run that was let run on."""
    runs = [Run(arrivals, tables, policy, stepwise=stepwise, **options) for stepwise in (False, True)]
    found, expected = map(told, runs)
    assert found == expected
    steady, steps = runs
    assert steady.outputs == steps.outputs
    assert all(path.startswith(STEP_BY_STEP) for path in steady.served.paths)
    return steady


@st.composite
def cases(draw):
    """A recording, a policy that replays it, and what it costs."""
    tables = draw(st.sampled_from([pico(), pico(), some_rounds()]))
    policy = draw(st.sampled_from(TRIES if tables is pico() else ROUNDS_POLICIES))
    return tables, policy, draw(st.sampled_from([*COSTS, LineCost]))(tables)


# No shrinking: a case takes long, and what differs is told by its first difference.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_steady_steps_equal_single_ones(data):
    tables, policy, cost = data.draw(cases())
    unit_tokens = data.draw(st.sampled_from([0, 8]))
    coming = data.draw(st.sampled_from([workloads, workloads, sessions]))
    check(
        data.draw(coming(unit_tokens=unit_tokens)),
        tables,
        policy,
        limits=data.draw(limits(tables)),
        num_replicas=data.draw(st.integers(1, 3)),
        router=data.draw(st.sampled_from(ROUTERS)),
        stale_ps=data.draw(st.sampled_from([0, 0, 10**9, 10**7])),
        unit_tokens=unit_tokens,
        cost=cost,
        horizon_ps=data.draw(st.sampled_from([None, None, 1, 10**8, 10**9, 3 * 10**9])),
    )


@pytest.mark.parametrize("policy", TRIES)
def test_batches_that_decode_for_long(policy, monkeypatch):
    """A few requests come seldom, so that most steps are steady ones; memory is short, ample, or keeps prefixes."""
    num_taken = 0
    take = SteadyReplica._end_step

    def counted(self, *args):
        nonlocal num_taken
        num_taken += 1
        take(self, *args)

    monkeypatch.setattr(SteadyReplica, "_end_step", counted)
    tables = pico()
    tags = sorted({request.tag for request in tables.trace.requests})
    arrivals = [
        Arrival(f"q{index}", index // 3 * 3 * 10**11, 20 + index % 7, 90 + index % 50, tag=tags[index % len(tags)])
        for index in range(24)
    ]
    for memory in ({}, {"num_blocks": 80}, {"num_blocks": 80, "prefix_cache": True, "block_tokens": 5}):
        check(arrivals, tables, policy, limits=limits_of(tables, **memory), num_replicas=2, cost=LineCost(tables))
    assert num_taken > 300
