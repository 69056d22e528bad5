"""Whatever comes, under whatever limits: requests, tokens, blocks and time are neither lost nor made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.runs.serving import total_ps
from paceline.traces.workloads.arrival import Arrival

from .served_runs import POLICIES, Run, check_little, limits, limits_of, pico, some_rounds, workloads

ROUND_POLICIES = ("target", "feature:3/target", "tokens:4/target", "adaptive")


@st.composite
def runs(draw, **options):
    """A run over a recording of either form, not yet gone."""
    tables, policies = draw(st.sampled_from([(pico(), POLICIES), (some_rounds(), ROUND_POLICIES)]))
    unit_tokens = draw(st.sampled_from([0, 8]))
    return Run(
        draw(workloads(unit_tokens=unit_tokens)),
        tables,
        draw(st.sampled_from(policies)),
        draw(limits(tables)),
        unit_tokens=unit_tokens,
        **options,
    )


@given(runs(num_replicas=2))
def test_all_that_come_end(run):
    run.go()
    log = run.log
    requests = log.requests
    rejected = requests["rejected"] != ""
    assert (log.finished | rejected).all()
    assert not (log.finished & rejected).any()
    assert run.served.stopped == log.meta.stopped == ""
    finished = log.finished
    assert (requests["emitted_tokens"][finished] == requests["output_tokens"][finished]).all()
    assert requests["emitted_tokens"].sum() == run.served.num_emitted == sum(map(len, run.outputs.values()))
    assert all(not any(state) for state in run.recorder.latest.values())  # no request, no block
    assert total_ps(log.gaps) == (requests["ended_at_ps"] - requests["first_token_at_ps"])[finished].sum()


@given(runs(num_replicas=2), st.integers(1, 40_000))
def test_what_a_horizon_cuts_is_counted(run, horizon):
    horizon_ps = horizon * 10**6
    run._options["horizon_ps"] = horizon_ps
    run.go()
    log = run.log
    requests = log.requests
    assert (requests["ended_at_ps"] <= horizon_ps).all()
    unfinished = requests["ended_at_ps"] < 0
    assert bool(run.served.stopped) == bool(log.meta.stopped)
    assert not unfinished.any() or run.served.stopped == "horizon"
    assert requests["emitted_tokens"].sum() == run.served.num_emitted
    assert (requests["emitted_tokens"][unfinished] < requests["output_tokens"][unfinished]).all()
    check_little(log)


@given(runs(num_replicas=3, router="least-loaded"))
def test_time_in_the_system_is_littles(run):
    check_little(run.go().log)


@given(runs(), st.none() | st.integers(1, 40_000))
def test_no_device_idles_beside_a_request(run, horizon):
    """Nor is it busy after a horizon: of the forward that is cut, the time until then counts."""
    run._options["horizon_ps"] = None if horizon is None else horizon * 10**6
    log = run.go().log
    busy_ps = sum(member.busy_ps for member in log.meta.replicas[0].members)
    there_ps, until = 0, 0
    columns = (log.requests[name].tolist() for name in ("arrived_at_ps", "ended_at_ps"))
    whole = [(arrived, log.meta.ended_at_ps if ended < 0 else ended) for arrived, ended in zip(*columns, strict=True)]
    for arrived, ended in sorted(whole):
        there_ps += max(ended - max(arrived, until), 0)
        until = max(until, ended)
    assert busy_ps == there_ps


@given(st.data())
def test_short_memory_changes_no_text(data):
    tables = pico()
    arrivals, policy = data.draw(workloads()), data.draw(st.sampled_from(POLICIES))
    ample = Run(arrivals, tables, policy).go()
    short = Run(arrivals, tables, policy, limits_of(tables, num_blocks=25, token_budget=32)).go()
    assert short.outputs == ample.outputs


def test_the_short_memory_of_that_test_puts_requests_back():
    arrivals = [Arrival(f"q{index}", 0, 20, 60) for index in range(6)]
    for policy in POLICIES:
        run = Run(arrivals, pico(), policy, limits_of(pico(), num_blocks=25, token_budget=32)).go()
        assert len(run.log.preemptions["at_ps"]) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_is_the_same_every_time(policy):
    arrivals = [Arrival(f"q{index}", index * 10**8, 20 + index, 60) for index in range(10)]
    one, other = (Run(arrivals, pico(), policy, num_replicas=3).go() for _ in range(2))
    assert one.times() == other.times()
    assert one.outputs == other.outputs
