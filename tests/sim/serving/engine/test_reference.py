"""For the target alone the engine equals a plain one, picosecond for picosecond."""

from hypothesis import given
from paceline.sim.serving.charges import to_ps
from paceline.traces.workloads.arrival import Arrival

from .plain_reference import serve_plainly
from .served_runs import LineCost, Run, limits, limits_of, target_only, workloads


def check(arrivals, given_limits):
    tables = target_only()
    cost = LineCost(tables)

    def forward_ps(num_rows, new_tokens, context_tokens):
        return to_ps(cost.forward_s("target", num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens))

    times, put_back = serve_plainly(arrivals, given_limits, forward_ps)
    run = Run(arrivals, tables, "target", given_limits, cost=cost).go()
    log = run.log
    assert run.times() == times
    preempted = zip(log.preemptions["request"].tolist(), log.preemptions["at_ps"].tolist(), strict=True)
    assert [(log.requests["request_id"][request], at_ps) for request, at_ps in preempted] == put_back
    return put_back


@given(workloads(most=20), limits(target_only(), prefix_cache=False))
def test_the_engine_equals_the_plain_one(arrivals, given_limits):
    check(arrivals, given_limits)


def test_it_does_where_memory_is_short():
    arrivals = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 30 + index % 30) for index in range(60)]
    limits = limits_of(
        target_only(), max_num_seqs=8, token_budget=16, num_blocks=30, block_tokens=4, prefix_cache=False
    )
    assert len(check(arrivals, limits)) > 20
