"""Closed loops: so many in the system at any time, the same whichever way steps are worked out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import CostModel
from paceline.sim.replay_tables import tables_of
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.errors import TraceFormatError
from paceline.traces.profile import DecideSeconds
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.arrival import Arrival

from .both_ways import BY_PENDING, LinedLineCost, cases, check, settings_of
from .served_runs import Run, limits_of, pico

MOST = 10**15


def ended(run):
    """(arrival, end) of each request, in the order in which they came."""
    run.go()
    requests = run.log.requests
    return list(zip(requests["arrived_at_ps"].tolist(), requests["ended_at_ps"].tolist(), strict=True))


def in_system(spans):
    """Requests in the system after each instant at which one came or ended, by time."""
    changes = {}
    for arrived, left in spans:
        changes[arrived] = changes.get(arrived, 0) + 1
        changes[left] = changes.get(left, 0) - 1
    found, now = {}, 0
    for at_ps, change in sorted(changes.items()):
        now += change
        found[at_ps] = now
    return found


def served(workload, policy="target", **options):
    return Run(workload, pico(), policy, cost=LinedLineCost(pico()), **options)


@pytest.mark.parametrize("policy", BY_PENDING[:3])
@pytest.mark.parametrize("concurrency", [1, 5, 64])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_as_many_are_in_the_system_as_are_asked_for_while_requests_last(policy, concurrency, num_replicas):
    text = f"closed:concurrency={concurrency},requests=150,prompt=5..40,output=geometric:12"
    spans = ended(served(open_workload(text), policy, num_replicas=num_replicas))
    assert len(spans) == 150
    last = max(arrived for arrived, _ in spans)
    assert {number for at_ps, number in in_system(spans).items() if at_ps < last} <= {concurrency}
    # Little's law: the mean in the system is arrivals per second times the mean time there.
    within = sum(min(left, last) - arrived for arrived, left in spans)
    assert within == concurrency * last
    # Requests do not march in step: they come at many instants.
    assert len({arrived for arrived, _ in spans}) > (150 - concurrency) / 4


@given(cases(), st.data())
def test_both_ways_are_the_same(case, data):
    tables, policy, cost = case
    concurrency = data.draw(st.integers(1, 9))
    text = f"closed:concurrency={concurrency},requests={data.draw(st.integers(1, 30))},prompt=1..30,output=1..40"
    settings = data.draw(settings_of(tables, 0))
    check(open_workload(text, seed=data.draw(st.integers(0, 9))), tables, policy, cost=cost, **settings)


@given(cases(), st.data())
def test_both_ways_are_the_same_with_sessions(case, data):
    tables, policy, cost = case
    text = "persistent-agent:turns=1..3,prompt=1..20,output=1..20,sessions=9,wait=exponential:0.001,unit=4"
    active, most_s = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([None, 0.0005, 0]))
    workload = open_workload(text, active_sessions=active, max_wait_s=most_s)
    check(workload, tables, policy, cost=cost, **data.draw(settings_of(tables, 4)))


def test_as_many_sessions_go_on_as_are_asked_for_their_waits_included():
    text = "persistent-agent:turns=1..4,prompt=10,output=5..20,sessions=30,wait=exponential:0.01,unit=4"
    run = served(open_workload(text, active_sessions=3), unit_tokens=4)
    spans, sessions = ended(run), {}
    for name, (arrived, left) in zip(run.log.requests["request_id"].tolist(), spans, strict=True):
        begun, until = sessions.get(name.partition("/")[0], (MOST, 0))
        sessions[name.partition("/")[0]] = min(begun, arrived), max(until, left)
    assert len(sessions) == 30
    last = max(begun for begun, _ in sessions.values())
    assert {number for at_ps, number in in_system(sessions.values()).items() if at_ps < last} == {3}


def test_a_request_that_is_rejected_lets_the_next_one_come():
    limits = limits_of(pico(), num_blocks=5)
    run = served(open_workload("closed:concurrency=2,requests=20,prompt=1..40,output=4"), limits=limits)
    assert len(ended(run)) == 20
    rejected = [bool(why) for why in run.log.requests["rejected"].tolist()]
    assert 0 < sum(rejected) < 20


def test_what_follows_a_request_that_is_rejected_at_once_comes_in_the_order_of_the_file(tmp_path):
    """With the first ones: the loop had its fourth request before its second one."""
    file = tmp_path / "rows.csv"
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,90,5\n0,9,5\n0,9,5\n0,9,5\n0,9,5\n")
    run = served(open_workload(file, concurrency=3), limits=limits_of(pico(), num_blocks=5))
    arrived = [at_ps for at_ps, _ in ended(run)]
    assert run.log.requests["request_id"].tolist() == ["2", "3", "4", "5", "6"]  # lines of the file
    assert arrived[:4] == [0, 0, 0, 0]
    assert arrived[4] > 0


def test_a_row_that_cannot_be_read_ends_the_run_when_it_would_have_come(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,9,5\n0,9,50\n0,9,x\n")
    run = served(open_workload(file, concurrency=2))
    with pytest.raises(TraceFormatError, match="line 4: num_decode_tokens"):
        run.go()
    # What follows at once comes first, whoever ended before the row was read.
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,9,5\n0,9,5\n0,9,5\n0,9,x\n")
    run = served(open_workload(file, concurrency=2))
    with pytest.raises(TraceFormatError, match="line 5: num_decode_tokens"):
        run.go()
    assert len(run.log.requests["arrived_at_ps"]) == 3


class NearlyFree(CostModel):
    """A drafter that costs next to nothing."""

    name = "nearly free"
    lookup_s = 0.0

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        return 0.01 if model == "target" else 1e-9


@pytest.mark.parametrize("stepwise", [False, True])
def test_a_drafter_that_is_never_right_gains_nothing(stepwise):
    """A request that follows another at once misses the next step of the target, also where drafts come before it."""
    tables = tables_of(make_trace(SyntheticSpec(requests=1, tokens=50, models=("draft", "target"), acceptance=(0.0,))))
    loop = "closed:concurrency=8,requests=80,prompt=20,output=5..15"
    spent = {}
    for policy in ("target", "draft:1/target"):
        run = Run(open_workload(loop), tables, policy, cost=NearlyFree(), stepwise=stepwise)
        spent[policy] = [left - arrived for arrived, left in ended(run)]
    assert spent["draft:1/target"] == pytest.approx(spent["target"], rel=1e-5)
    assert sum(spent["draft:1/target"]) > sum(spent["target"])


class Thinking(NearlyFree):
    """A policy that takes 2 ms for each step, and a drafter that takes 2 ms."""

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        return 0.01 if model == "target" else 0.002

    def decide_s(self, policy):
        return DecideSeconds.of_step(0.002)


def test_who_comes_while_the_policy_thinks_is_in_the_next_step():
    """The first request thinks from 10 ms, drafts from 12, thinks from 14 for the step at 16: all come before that."""
    for comes_ms in (11, 13, 14):
        arrivals = [Arrival("first", 0, 20, 9), Arrival("then", comes_ms * 10**9, 20, 1)]
        times = Run(arrivals, pico(), "draft:1/target", cost=Thinking()).go().times()
        assert [at_ps // 10**9 for at_ps in times["then"]] == [14, 26, 26], comes_ms


@pytest.mark.parametrize("policy", ["target", "draft:3/target"])
@pytest.mark.parametrize("stepwise", [False, True])
def test_replicas_whose_cycles_end_together_take_all_that_follows_together(policy, stepwise):
    """Two replicas in step: what follows comes after the cycles of both, so that neither begins with a part of it."""
    workload = open_workload("closed:concurrency=8,requests=32,prompt=20,output=1")
    run = Run(workload, pico(), policy, num_replicas=2, router="least-loaded", stepwise=stepwise).go()
    requests = run.log.requests
    assert len(set(requests["arrived_at_ps"].tolist())) == 4
    assert requests["scheduled_at_ps"].tolist() == requests["arrived_at_ps"].tolist()
    assert sorted(requests["replica"].tolist()) == [0] * 16 + [1] * 16
