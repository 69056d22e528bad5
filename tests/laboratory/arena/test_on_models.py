"""Policies run in both worlds on a tiny trained pool; pairs that stand the other way round are said."""

from pathlib import Path

import pytest
from paceline.base.errors import ArgumentError
from paceline.policies.spec import make_policy
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.make import make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.store import read_trace
from paceline_laboratory.arena.on_models import POLICIES, OrderOnModels, Standing, best_static, order_on_models
from paceline_laboratory.arena.recordings import Entry, RecordingShelf, TrainedSource
from paceline_laboratory.arena.store import BEST_STATIC

from ...cli.command_line import refused

RECIPES = Path(__file__).with_name("recipes.toml")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    source = TrainedSource(pool="llama", file=RECIPES)
    return RecordingShelf(work=tmp_path_factory.mktemp("arena"), entries={"llama": Entry(what="", source=source)})


def test_every_policy_runs_in_both_worlds(shelf):
    found = order_on_models("llama", shelf, batches=(1, 2), requests=2, runs=2, cost="h100")
    assert [one.batch for one in found.standings] == [1] * 4 + [2] * 4
    for batch in (1, 2):
        of_batch = [one for one in found.standings if one.batch == batch]
        assert {one.policy for one in of_batch} == {BEST_STATIC, *POLICIES}
        assert len({one.tokens for one in of_batch}) == 1
        assert [one.measured_s for one in of_batch] == sorted(one.measured_s for one in of_batch)
        best = next(one for one in of_batch if one.policy == BEST_STATIC)
        assert best.simulated_s <= next(one for one in of_batch if one.policy == "plain").simulated_s
    text = repr(found)
    assert "of 12 pairs stand in the same order in both worlds" in text
    assert len(found.turned()) == sum("is simulated to be faster" in line for line in found.lines())


def test_the_best_static_chain_is_no_slower_than_others(shelf):
    trace = read_trace(shelf.recording("llama"))
    scenario = Scenario(tables=TrieTables(trace), cost=make_cost("h100", trace), batch=2)

    def seconds(policy):
        log = simulate(scenario, make_policy(policy, scenario.tables.pool), policy)
        return float(log.requests["finished_at_s"].max())

    best = seconds(str(best_static(scenario)))
    for other in ("plain", "draft:2/target", "ngram:2/target", "slim:3/target", "draft:1/slim:2/target"):
        assert best <= seconds(other) * (1 + 1e-9)


def standing(policy, simulated_s, *runs_s, batch=1):
    return Standing(batch=batch, policy=policy, chain=None, tokens=100, simulated_s=simulated_s, runs_s=runs_s)


def test_pairs_that_are_turned_over_are_said_with_how_sure_that_is():
    found = OrderOnModels(
        recording="r",
        cost="c",
        requests=1,
        standings=(
            standing("a", 1.0, 1.0, 1.1),
            standing("b", 0.9, 1.05, 1.3),
            standing("c", 0.8, 2.0, 2.0),
            standing("d", 0.1, 9.0, batch=8),
        ),
        remarks=(),
    )
    turned = {(one.simulated, one.measured): one for one in found.turned()}
    assert set(turned) == {("b", "a"), ("c", "a"), ("c", "b")}
    assert not turned["b", "a"].apart
    assert turned["c", "a"].apart
    assert turned["c", "a"].lead == pytest.approx(2.0 / 1.05 - 1)
    assert found.lines()[0] == "0 of 3 pairs stand in the same order in both worlds"


def test_what_no_trained_pool_made_is_refused(shelf):
    with pytest.raises(ArgumentError, match="the recording must be one of llama, got 'pico'"):
        order_on_models("pico", shelf)
    with pytest.raises(ArgumentError, match="`batches` must be >= 1, got 0"):
        order_on_models("llama", shelf, batches=())


def test_the_command_refuses_what_no_trained_pool_made_in_one_line():
    said = refused("arena-models", "pico-coupled")
    assert said.startswith("the recording must be one of llama-plain, ")
    assert said.rstrip().endswith("got 'pico-coupled'")
    assert "--batch" in refused("arena-models", "mixed", "--batch", "0")
