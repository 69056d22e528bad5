"""A run in the simulator: its clock, its prefill, and members that work ahead."""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.benchmarks.shared.closed_forms import ahead_tokens
from paceline.decoding.results import DRAFT, VERIFY, OverlapResults, PartRun
from paceline.decoding.seen import Start
from paceline.policies import Draft, Verify, make_policy
from paceline.reports import summarise_run
from paceline.sim.contexts import TrieTables
from paceline.sim.recorded import DevicePlacement, placement_of, recorded_pool
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace

from ..policies.making import Watched, flat
from ..strategies import synthetic_traces
from ..unit_cost import UnitCost
from .tries.small_traces import Anything, Script, easy_cost, replay, table, trunk_of

STEP = ("kind", "level", "drafted", "judged", "own", "emitted", "prefill")
TWO = make_trace(SyntheticSpec(requests=3, tokens=12, prompt_tokens=7, models=("draft", "target"), acceptance=(0.8,)))


def test_the_first_operation_reads_the_prompt_and_writes_a_token():
    log, outputs = replay(TWO, Script(recorded_pool(TWO), [Draft("draft", 2), Verify("target")]), strict=True)
    assert table(log, "steps", *STEP)[:2] == [(VERIFY, 1, 0, 0, 1, 1, 1), (DRAFT, 0, 2, 0, 0, 0, 0)]
    fed = table(log, "ops", "kind", "level", "num_forwards", "new_tokens")[:3]
    assert fed[0] == (VERIFY, 1, 1, 7), "the prompt"
    assert fed[1] == (DRAFT, 0, 2, 8 + 1), "the prompt and the first token, then a token"
    assert fed[2][:2] == (VERIFY, 1)
    assert fed[2][3] == 3, "the first token and the drafts; the prompt is held"
    prefill_s = easy_cost(TWO).forward_s("target", num_rows=1, new_tokens=7, context_tokens=0)
    assert log.requests["first_token_at_s"][0] == log.ops["duration_s"][0] == prefill_s
    assert outputs == trunk_of(TWO)


def test_the_first_token_comes_as_early_under_any_chain():
    pool = recorded_pool(TWO)
    first = {
        name: replay(TWO, make_policy(name, pool))[0].requests["first_token_at_s"][0]
        for name in ("plain", "draft:1/target", "draft:8/target")
    }
    assert len(set(first.values())) == 1
    late, _ = replay(TWO, make_policy("draft:8/target", pool), start=Start.draft)
    assert late.requests["first_token_at_s"][0] > first["plain"]


@given(trace=synthetic_traces(max_models=3), seed=st.integers(0, 99), batch=st.integers(1, 3))
def test_either_start_commits_the_trunk_and_costs_one_call_apart(trace, seed, batch):
    pool = recorded_pool(trace)
    for start in (Start.prefill, Start.draft):
        log, outputs = replay(trace, Anything(pool, seed), batch=batch, start=start)
        assert outputs == trunk_of(trace)
        by_target = (log.steps["kind"] == VERIFY) & (log.steps["level"] == pool.target_level)
        prefills = int(log.steps["prefill"].sum())
        assert prefills == (len(trace.requests) if start is Start.prefill else 0)
        assert by_target.sum() == prefills + len(log.rounds()["round"])
        assert not (log.steps["prefill"][~by_target]).any()
        summary = summarise_run(log)
        rounds = len(log.rounds()["round"])
        assert summary.acceptance_length == pytest.approx(
            (summary.output_tokens - prefills) / rounds if rounds else 0.0
        )
        assert summary.target_calls_per_token == pytest.approx((rounds + prefills) / summary.output_tokens)


def test_a_start_that_a_recording_does_not_hold_is_told_before_anything_runs():
    with pytest.raises(ValueError, match=r"`start` must be prefill or draft for recording .*, which holds no start"):
        Scenario(tables=TrieTables(TWO), cost=UnitCost(), start=Start.recorded)


TARGET_S = 0.02


@cache
def tables(acceptance, *, requests=8, tokens=400):
    names = ("draft", "target") if len(acceptance) == 1 else ("draft", "mid", "target")
    spec = SyntheticSpec(
        requests=requests, tokens=tokens, models=names, acceptance=acceptance, reach=16, run=16, seed=3
    )
    return TrieTables(make_trace(spec))


def speed(table, policy, devices, *, draft_s, batch=1):
    """Output tokens per second after the prefills, which work ahead of nothing."""
    cost = flat(draft=draft_s, target=TARGET_S)
    scenario = Scenario(tables=table, cost=cost, batch=batch, placement=placement_of(devices, table.pool))
    log = simulate(scenario, make_policy(policy, table.pool), policy)
    prefills = log.steps["prefill"] == 1
    prefill_s = TARGET_S * len(set(log.steps["op"][prefills].tolist()))
    return float(log.steps["emitted"][~prefills].sum()) / (float(log.requests["finished_at_s"].max()) - prefill_s)


@pytest.mark.parametrize(
    ("acceptance", "window", "draft_s"),
    [(0.6, 4, 0.003), *(pytest.param(0.85, *of, marks=pytest.mark.slow) for of in ((6, 0.005), (4, 0.003)))],
)
def test_two_devices_take_the_longer_of_both_and_one_takes_the_sum(acceptance, window, draft_s):
    table = tables((acceptance,))
    tokens = ahead_tokens(acceptance, window)
    policy = f"pearl,window={window}"
    both = speed(table, policy, "each", draft_s=draft_s)
    alone = speed(table, policy, "one", draft_s=draft_s)
    assert both == pytest.approx(tokens / max(window * draft_s, TARGET_S), rel=0.025)
    assert alone == pytest.approx(tokens / (window * draft_s + TARGET_S), rel=0.025)


def test_placement_changes_seconds_and_no_step():
    table = tables((0.5, 0.8), requests=4, tokens=100)
    cost = flat(draft=0.004, mid=0.009, target=TARGET_S)
    logs = []
    for devices in ("one", "each", "draft=a", "target=b,mid=b"):
        scenario = Scenario(tables=table, cost=cost, batch=3, placement=placement_of(devices, table.pool))
        logs.append(simulate(scenario, make_policy("pipespec,window=3", table.pool), "p"))
    one, each = logs[:2]
    for log in logs[1:]:
        assert all((log.steps[name] == one.steps[name]).all() for name in one.steps if name != "end_s")
        assert (log.ops["duration_s"] == one.ops["duration_s"]).all()
    finished = [float(log.requests["finished_at_s"].max()) for log in logs]
    assert finished[1] < finished[2] == finished[3] < finished[0]
    assert [log.meta["devices"] for log in logs] == ["one", "each", "draft=a", "target=b,mid=b"]
    assert (each.ops["start_s"] <= one.ops["start_s"]).all()


@pytest.mark.parametrize("policy", ["pearl,window=3", "dsi,window=2", "pipespec,window=3"])
def test_what_is_written_ahead_in_vain_is_drafted_and_wasted(policy):
    table = tables((0.5, 0.8) if policy.startswith("pipespec") else (0.7,), requests=4, tokens=100)
    watched = Watched(make_policy(policy, table.pool))
    cost = flat(**dict.fromkeys(table.pool.names, TARGET_S))
    summary = summarise_run(simulate(Scenario(tables=table, cost=cost), watched, policy))
    *below, target = summary.levels
    said = watched.outcomes
    assert sum(level.drafted for level in summary.levels) == sum(outcome.num_drafted for outcome in said)
    assert sum(level.refused for level in summary.levels) == sum(outcome.refused_at is not None for outcome in said)
    assert summary.output_tokens == target.accepted + target.own
    assert summary.wasted_tokens == sum(level.drafted + level.own for level in below) - target.accepted > 0
    if len(below) == 1:
        assert summary.rejection_rate == target.refused / (target.accepted + target.refused)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 9.0)), min_size=1, max_size=5))
def test_an_operation_ends_with_its_busiest_device(parts):
    devices = tuple(device for device, _ in parts)
    turns = OverlapResults([], [PartRun(0.0, [], seconds) for _, seconds in parts], sum(s for _, s in parts))
    placed = DevicePlacement(devices).placed(range(len(parts)), turns)
    busy = {device: sum(seconds for other, seconds in parts if other == device) for device in devices}
    if len(busy) == 1:
        assert placed == turns
        return
    assert placed.duration_s == pytest.approx(max(busy.values()))
    for device in devices:
        own = sorted(part[::2] for part, name in zip(placed.parts, devices, strict=True) if name == device)
        for (start_s, duration_s), (next_s, _) in pairwise(own):
            assert next_s == pytest.approx(start_s + duration_s)


def test_a_placement_that_is_none_is_refused():
    for text, says in (
        ("two", "must be one, each or NAME=DEVICE separated by commas, got 'two'"),
        ("nobody=1", "must name members of draft, target, got 'nobody'"),
        ("draft=1,draft=2", "must name each member once, with a device, got draft=2"),
        ("draft=", "must name each member once, with a device, got draft="),
    ):
        with pytest.raises(ArgumentError, match=says):
            placement_of(text, tables((0.5,), requests=1, tokens=4).pool)
