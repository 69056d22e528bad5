"""Working ahead in the simulator: seconds by device, and speed as its closed form has it."""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.decoding.results import OverlapResults, PartRun
from paceline.policies import make_policy
from paceline.policies.about import ahead_tokens
from paceline.reports import summarise_run
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.files import CostLine, FileCost
from paceline.sim.recorded import Placement, placement_of
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace

TARGET_S = 0.02


@cache
def tables(acceptance, *, requests=24, tokens=1500):
    names = ("draft", "target") if len(acceptance) == 1 else ("draft", "mid", "target")
    spec = SyntheticSpec(
        requests=requests, tokens=tokens, models=names, acceptance=acceptance, reach=16, run=16, seed=3
    )
    return TrieTables(make_trace(spec))


def constant(**seconds):
    return FileCost("constant", {name: CostLine(intercept_s=each) for name, each in seconds.items()})


def speed(table, policy, devices, *, draft_s, batch=1):
    """Output tokens per second after the prefills, which work ahead of nothing."""
    cost = constant(draft=draft_s, target=TARGET_S)
    scenario = Scenario(tables=table, cost=cost, batch=batch, placement=placement_of(devices, table.pool))
    log = simulate(scenario, make_policy(policy, table.pool), policy)
    prefills = log.steps["prefill"] == 1
    prefill_s = TARGET_S * len(set(log.steps["op"][prefills].tolist()))
    return float(log.steps["emitted"][~prefills].sum()) / (float(log.requests["finished_at_s"].max()) - prefill_s)


@pytest.mark.parametrize(
    ("acceptance", "window", "draft_s"),
    [
        (0.6, 4, 0.003),
        (0.85, 6, 0.005),
        pytest.param(0.85, 4, 0.003, marks=pytest.mark.slow),
        pytest.param(0.6, 6, 0.005, marks=pytest.mark.slow),
    ],
)
def test_two_devices_take_the_longer_of_both_and_one_takes_the_sum(acceptance, window, draft_s):
    table = tables((acceptance,))
    tokens = ahead_tokens(acceptance, window)
    policy = f"pearl,window={window}"
    both = speed(table, policy, "each", draft_s=draft_s)
    alone = speed(table, policy, "one", draft_s=draft_s)
    assert both == pytest.approx(tokens / max(window * draft_s, TARGET_S), rel=0.01)
    assert alone == pytest.approx(tokens / (window * draft_s + TARGET_S), rel=0.01)


def test_placement_changes_seconds_and_no_step():
    table = tables((0.5, 0.8), requests=4, tokens=200)
    cost = constant(draft=0.004, mid=0.009, target=TARGET_S)
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
    table = tables((0.5, 0.8) if policy.startswith("pipespec") else (0.7,), requests=4, tokens=200)
    watched = Watched(make_policy(policy, table.pool))
    cost = constant(**dict.fromkeys(table.pool.names, TARGET_S))
    summary = summarise_run(simulate(Scenario(tables=table, cost=cost), watched, policy))
    *below, target = summary.levels
    said = watched.outcomes
    assert sum(level.drafted for level in summary.levels) == sum(outcome.num_drafted for outcome in said)
    assert sum(level.refused for level in summary.levels) == sum(outcome.refused_at is not None for outcome in said)
    assert summary.output_tokens == target.accepted + target.own
    assert summary.wasted_tokens == sum(level.drafted + level.own for level in below) - target.accepted > 0
    if len(below) == 1:
        assert summary.rejection_rate == target.refused / (target.accepted + target.refused)


class Watched:
    """Passes on to a policy, and keeps what it learnt."""

    def __init__(self, policy):
        self.decide, self._policy, self.outcomes = policy.decide, policy, []

    def learn(self, outcome):
        self.outcomes.append(outcome)
        self._policy.learn(outcome)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 9.0)), min_size=1, max_size=5))
def test_an_operation_ends_with_its_busiest_device(parts):
    devices = tuple(device for device, _ in parts)
    turns = OverlapResults([], [PartRun(0.0, [], seconds) for _, seconds in parts], sum(s for _, s in parts))
    placed = Placement(devices).placed(range(len(parts)), turns)
    busy = {device: sum(seconds for other, seconds in parts if other == device) for device in devices}
    if len(busy) == 1:
        assert placed == turns
        return
    assert placed.duration_s == pytest.approx(max(busy.values()))
    for device in devices:
        own = sorted(part[::2] for part, name in zip(placed.parts, devices, strict=True) if name == device)
        for (start_s, duration_s), (next_s, _) in pairwise(own):
            assert next_s == pytest.approx(start_s + duration_s)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("two", "must be one, each or NAME=DEVICE parted by commas, got 'two'"),
        ("nobody=1", "must name members of draft, target, got 'nobody'"),
        ("draft=1,draft=2", "must name each member once, with a device, got draft=2"),
        ("draft=", "must name each member once, with a device, got draft="),
    ],
)
def test_a_placement_that_is_none_is_refused(text, says):
    with pytest.raises(ArgumentError, match=says):
        placement_of(text, tables((0.5,), requests=1, tokens=4).pool)
