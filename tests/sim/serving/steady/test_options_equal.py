"""Retraction and host memory are the same whether steps are run on or one by one."""

from dataclasses import replace

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paceline.sim.serving.limits import Preemption
from paceline.traces.workloads.arrival import Arrival

from ..engine.served_runs import LineCost, limits, limits_of, pico, workloads
from ..engine.test_offload import offloading
from .test_steady_equal import TRIES, check


@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_steady_steps_equal_single_ones_under_every_option(data):
    tables, unit_tokens = pico(), data.draw(st.sampled_from([0, 8]))
    found = replace(data.draw(limits(tables)), preemption=data.draw(st.sampled_from(Preemption)))
    if data.draw(st.booleans()):
        found = offloading(
            found, host_blocks=data.draw(st.sampled_from([5, 10**6])), block_us=data.draw(st.integers(0, 2))
        )
    check(
        data.draw(workloads(most=20, unit_tokens=unit_tokens)),
        tables,
        data.draw(st.sampled_from(("target", *TRIES))),
        limits=found,
        num_replicas=data.draw(st.integers(1, 2)),
        unit_tokens=unit_tokens,
        cost=LineCost(tables),
        horizon_ps=data.draw(st.sampled_from([None, None, 10**9])),
    )


def test_they_do_where_requests_are_retracted_and_blocks_come_back():
    arrivals = [Arrival(f"q{index}", index * 3 * 10**8, 20 + index % 9, 70) for index in range(14)]
    for policy in ("adaptive", "draft:4/target", "target"):
        for prefix_cache in (False, True):
            tight = limits_of(pico(), num_blocks=50, token_budget=32, prefix_cache=prefix_cache)
            retracting = replace(offloading(tight), preemption=Preemption.fewest_tokens)
            run = check(arrivals, pico(), policy, limits=retracting, cost=LineCost(pico()))
            assert len(run.log.preemptions["at_ps"]) > 0


def test_who_was_put_back_comes_in_when_a_commit_ended_all_others():
    lengths = [(1, 11, 13), (2, 1, 10), (3, 7, 45), (4, 17, 8), (2004, 25, 34), (2155, 7, 33), (2305, 28, 17)]
    lengths += [(2455, 2, 14), (2500, 20, 30), (2605, 12, 40), (2700, 25, 30), (2800, 8, 44)]
    tight = offloading(limits_of(pico(), num_blocks=15, max_num_seqs=3, token_budget=36), host_blocks=10**6, block_us=0)
    for shift in range(12):
        arrivals = [Arrival(f"q{shift}.{at}", at * 10**6, prompt, output) for at, prompt, output in lengths]
        run = check(arrivals, pico(), "early-commit", limits=tight, cost=LineCost(pico()))
        assert run.log.finished.all()
