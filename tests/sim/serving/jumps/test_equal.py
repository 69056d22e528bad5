"""Jumps equal steps, picosecond for picosecond, whatever comes and under whatever limits."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paceline.runs.serving import STEP_BY_STEP
from paceline.sim.serving.limits import Preemption
from paceline.traces.workloads.arrival import Arrival

from ..engine.served_runs import LineCost, Run, limits_of, pico, target_only, workloads
from .both_paths import check, whole_budgets
from .lined_costs import COSTS, LinedLineCost

ROUTERS = ("round-robin", "least-loaded", "least-loaded,by=kv", "least-loaded,by=tokens", "two-choices",
           "prefix-affinity")  # fmt: skip


class Turns:
    """Requests that follow one another, after a while or at once."""

    def __init__(self, name, left, think_ps):
        self._name, self._left, self._think_ps = name, left, think_ps

    depths = ()

    def after(self, ended_ps):
        if not self._left:
            return ()
        turns = Turns(self._name, self._left - 1, self._think_ps)
        return (Arrival(f"{self._name}-{self._left}", ended_ps + self._think_ps, 9, 7, turns=turns),)


@st.composite
def sessions(draw, **options):
    """Workloads of which some requests are followed by others."""
    thinks = st.sampled_from([0, 0, 1, 10**8])
    return [
        arrival._replace(turns=Turns(arrival.request_id, draw(st.integers(0, 3)), draw(thinks)))
        for arrival in draw(workloads(most=20, **options))
    ]


# No shrinking: a case takes long, and what differs is told by its first difference.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_jumps_equal_steps(data):
    tables = data.draw(st.sampled_from([target_only(), pico()]))
    unit_tokens = data.draw(st.sampled_from([0, 8]))
    check(
        data.draw(sessions(unit_tokens=unit_tokens)),
        tables,
        limits=data.draw(whole_budgets(tables)),
        num_replicas=data.draw(st.integers(1, 3)),
        router=data.draw(st.sampled_from(ROUTERS)),
        stale_ps=data.draw(st.sampled_from([0, 0, 10**9, 10**7])),
        unit_tokens=unit_tokens,
        cost=data.draw(st.sampled_from(COSTS))(tables),
        horizon_ps=data.draw(st.sampled_from([None, None, 1, 10**8, 10**9, 3 * 10**9])),
    )


def test_jumps_equal_steps_where_memory_is_short():
    """Many requests are put back, with and without a prefix cache to find their blocks in again."""
    tables = target_only()
    arrivals = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 30 + index % 30) for index in range(60)]
    for prefix_cache in (False, True):
        tight = limits_of(tables, max_num_seqs=8, token_budget=16, num_blocks=30, prefix_cache=prefix_cache)
        log = check(arrivals, tables, limits=tight).log
        assert len(log.preemptions["request"]) > 20


def test_replicas_in_lockstep_take_turns():
    """Steps of all replicas end at the same instants, and so do requests that others follow at once."""
    tables = target_only()
    arrivals = [Arrival(f"q{index}", 0, 8, 10 + 10 * (index % 3), turns=Turns(f"q{index}", 5, 0)) for index in range(9)]
    for router in ROUTERS:
        check(arrivals, tables, num_replicas=3, router=router, cost=LinedLineCost(tables, context=0))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"outputs": {}}, "tokens of answers are asked for"),
        (
            {"limits": limits_of(target_only(), max_num_seqs=9, token_budget=8)},
            "token_budget 8 is below max_num_seqs 9",
        ),
        (
            {"limits": replace(limits_of(target_only()), preemption=Preemption.fewest_tokens)},
            "preemption is fewest-tokens",
        ),
        ({"cost": LineCost(target_only())}, "cost line has no lines by the tokens held"),
        ({"stepwise": True}, "asked for"),
    ],
)
def test_what_keeps_from_jumping_is_told(options, why):
    tables = target_only()
    run = Run([Arrival("q", 0, 5, 9)], tables, **({"outputs": None, "cost": LinedLineCost(tables)} | options)).go()
    assert run.served.paths == (f"{STEP_BY_STEP}: {why}",)
