"""SpecRouter keeps the contract, finds the chain that pays, stays with it, and tells what it refused early."""

from dataclasses import replace

import numpy as np
import pytest
from paceline.policies import Member, Pool, check_policy, make_policy
from paceline.policies.check import check_pool
from paceline.policies.specrouter.options import CONSTANTS
from paceline.policies.specrouter.policy import SpecRouter
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.by_name import make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace

from ...decoding.script import run as run_one

OPTIONS = (
    "",
    ",stop=window",
    ",form=filter",
    ",select=batch",
    ",similarity=simscore",
    ",every=1,explore=1,probe=0,hysteresis=0.0",
    ",most=1",
    ",without=lookups+optimism",
    ",without=answers",
    ",store=32",
    ",without=ease+evidence",
    ",costs=draft:1/mid:3/slim:6/target:10",
)


@pytest.mark.parametrize("options", OPTIONS)
def test_it_keeps_the_contract_and_commits_the_trunk(options):
    text = f"specrouter{options}"
    assert check_policy(lambda pool: make_policy(text, pool), name=text).lossless


@pytest.mark.parametrize(
    "names", [("target",), ("ngram", "target"), ("draft", "target"), ("ngram", "draft", "target")], ids="/".join
)
def test_any_pool_will_do(names):
    pool = Pool(tuple(Member(name=name, model_free=name == "ngram") for name in names))
    assert check_policy(SpecRouter, pool=pool).lossless


def test_a_model_that_only_drafts_never_judges():
    names = ("draft", "foreign", "mid", "target")
    pool = Pool(tuple(Member(name=name, drafts_only=name == "foreign") for name in names))
    assert check_policy(SpecRouter, pool=pool).lossless


def synthetic(acceptance, cost_ratios, *, off_trunk=None, requests=12, seed=0):
    spec = SyntheticSpec(
        requests=requests,
        tokens=96,
        models=("draft", "mid", "target"),
        acceptance=acceptance,
        off_trunk=off_trunk,
        depth_decay=0.0,
        cost_ratios=cost_ratios,
        reach=24,
        run=17,
        seed=seed,
    )
    trace = make_trace(spec)
    return Scenario(tables=TrieTables(trace), cost=make_cost("cpu", trace))


def replayed(scenario, **options):
    policy = SpecRouter(scenario.tables.pool, **options)
    return policy, simulate(scenario, policy, "specrouter")


def judged_share(log, level):
    """Of verifications in the second half of the run, the share by a member."""
    verifies = log.steps["level"][log.steps["kind"] == 1]
    return float(np.mean(verifies[len(verifies) // 2 :] == level))


@pytest.mark.parametrize("stop", ["confidence", "window"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_useless_middle_model_is_dropped(stop, seed):
    """It agrees with the target no more than the drafter, and costs half of the target: it is tried now and then."""
    scenario = synthetic((0.8, 0.8), (0.05, 0.5), seed=seed)
    policy, log = replayed(scenario, stop=stop)
    assert judged_share(log, 1) < 0.08
    assert judged_share(replayed(scenario, stop=stop, without="optimism")[1], 1) < 0.02
    assert policy.scheduler.plan("synthetic", num_rows=1, num_running=1).chain.levels == (0, 2)


@pytest.mark.parametrize("stop", ["confidence", "window"])
@pytest.mark.parametrize("seed", [0, 1])
def test_costs_of_1_to_10_to_100_take_the_middle_level(stop, seed):
    scenario = synthetic((0.6, 0.9), (0.01, 0.1), off_trunk=(0.7, 0.9), seed=seed)
    policy, log = replayed(scenario, stop=stop)
    assert judged_share(log, 1) > 0.5
    assert policy.scheduler.plan("synthetic", num_rows=1, num_running=1).chain.levels == (0, 1, 2)


def test_it_is_faster_than_what_it_may_choose_from_at_random():
    """Against every chain of windows 2, 4 and 8 of a recording where three levels pay."""
    scenario = synthetic((0.6, 0.9), (0.01, 0.1), off_trunk=(0.7, 0.9), requests=16)
    chains = ["plain", *(f"{name}:{n}/target" for name in ("draft", "mid") for n in (2, 4, 8))]
    chains += [f"draft:{n}/mid:{m}/target" for n in (2, 4, 8) for m in (4, 8)]
    seconds = [
        simulate(scenario, make_policy(name, scenario.tables.pool), name).requests["finished_at_s"].max()
        for name in chains
    ]
    _, log = replayed(scenario)
    assert log.requests["finished_at_s"].max() < 1.02 * min(seconds)


def test_hysteresis_keeps_a_chain():
    """Two chains that are nearly as good: without hysteresis members are changed time and again."""
    scenario = synthetic((0.7, 0.85), (0.1, 0.3), requests=16)
    restless, _ = replayed(scenario, every=1, probe=0, hysteresis=0.0)
    calm, _ = replayed(scenario, every=1, probe=0, hysteresis=0.5)
    assert restless.counters.switches > 2 * calm.counters.switches


def test_the_warm_up_times_every_member_and_scores_every_pair():
    policy = SpecRouter(check_pool())
    run_one(policy, budget=12)
    policy.scheduler.knowledge.digest()
    fresh = policy.scheduler.knowledge.agreement.freshness()
    models = range(1, 5)
    assert all(policy.scheduler.knowledge.profiler.known(level) for level in models)
    assert all(fresh[low, high] > 0 for low in models for high in models if low < high)


def test_early_refusals_are_those_of_the_run_log():
    scenario = synthetic((0.6, 0.9), (0.01, 0.1))
    policy, log = replayed(scenario)
    by_mid = (log.steps["kind"] == 1) & (log.steps["level"] == 1)
    refused = log.steps["judged"][by_mid] - log.steps["accepted"][by_mid]
    assert policy.counters.refused_early["mid"] == refused.sum() > 0
    assert policy.counters.judged["mid"] == log.steps["judged"][by_mid].sum()
    by_target = (log.steps["kind"] == 1) & (log.steps["level"] == 2)
    assert policy.counters.rounds == np.sum(by_target & (log.steps["prefill"] == 0))


def test_stated_costs_make_steps_independent_of_seconds():
    trace = make_trace(SyntheticSpec(requests=4, tokens=64, models=("draft", "mid", "target"), acceptance=(0.6, 0.9)))
    tables = TrieTables(trace)
    cost = make_cost("cpu", trace)
    slower = make_cost("cpu", trace, scale={"mid": 50.0})
    scenarios = [Scenario(tables=tables, cost=price) for price in (cost, slower)]
    logs = [replayed(scenario, costs="draft:1/mid:5/target:50")[1] for scenario in scenarios]
    for name in ("kind", "level", "asked", "drafted", "accepted"):
        np.testing.assert_array_equal(logs[0].steps[name], logs[1].steps[name])
    measured = [replayed(scenario)[1] for scenario in scenarios]
    assert len(measured[0].steps["kind"]) != len(measured[1].steps["kind"])


@pytest.mark.parametrize("batch", [4, 16])
@pytest.mark.parametrize("select", ["request", "batch"])
def test_batches_are_served(batch, select):
    scenario = synthetic((0.6, 0.9), (0.01, 0.1), requests=20)
    policy = SpecRouter(scenario.tables.pool, select=select)
    log = simulate(Scenario(tables=scenario.tables, cost=scenario.cost, batch=batch), policy, "specrouter")
    assert log.requests["divergent_tokens"].sum() == 0
    assert log.ops["num_rows"].max() > 1


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"every": 0}, r"every must be in \[1, 1,000,000\], got 0"),
        ({"most": 0}, r"most must be in \[1, 1,000\], got 0"),
        ({"form": "flat"}, "form must be nested or filter, got 'flat'"),
        ({"similarity": "tvd"}, "similarity must be auto, simscore or argmax, got 'tvd'"),
        ({"select": "all"}, "select must be auto, request or batch, got 'all'"),
        ({"stop": "never"}, "stop must be confidence or window, got 'never'"),
        ({"explore": -1}, "explore and probe must be >= 0, got explore=-1, probe=16"),
        ({"probe": -1}, "explore and probe must be >= 0, got explore=64, probe=-1"),
        ({"select": "request", "explore": 64}, "explore has no effect with select=request, got explore=64"),
        ({"select": "request", "probe": 0}, "probe has no effect with select=request, got probe=0"),
        ({"select": "batch", "form": "nested"}, "form has no effect with select=batch, got form=nested"),
        ({"select": "batch", "without": "ease+optimism"}, "without=optimism has no effect with select=batch"),
        ({"hysteresis": 1.0}, r"hysteresis must be in \[0, 1\), got 1.0"),
        ({"store": 1}, r"store must be in \[2, 1,000,000\], got 1"),
        ({"store": 32, "without": "answers"}, "store has no effect with without=answers, got store=32"),
        ({"without": "copies"}, "without must name lookups, answers, optimism, ease or evidence, got 'copies'"),
        ({"costs": "draft:1"}, "costs must name every model of the pool"),
    ],
)
def test_wrong_options_are_told(option, told):
    with pytest.raises(ValueError, match=told):
        SpecRouter(check_pool(), **option)


def test_a_constant_that_is_a_share_is_one():
    with pytest.raises(ValueError, match=r"copy_risk must be in \(0, 1\], got 1.5"):
        replace(CONSTANTS, copy_risk=1.5)
