"""Ladders price members by role."""

import pytest
from paceline.base.errors import ArgumentError
from paceline.base.files import shipped
from paceline.policies.spec import make_policy
from paceline.reports.summary import summarise_run
from paceline.sim.contexts import TrieTables
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.store import read_trace
from paceline_laboratory.arena.ladders import ladder, ladders, roles_of


@pytest.mark.parametrize(
    ("members", "roles"),
    [
        (["target"], ["target"]),
        (["eagle", "target"], ["draft", "target"]),
        (["sps", "eagle", "big"], ["draft", "mid", "target"]),
        (["a", "b", "c", "d"], ["draft", "mid", "slim", "target"]),
        (["draft", "mid", "slim", "target"], ["draft", "mid", "slim", "target"]),
        (["draft-code", "draft-math", "other", "target"], ["draft", "draft", "mid", "target"]),
        (["draft", "slim", "target"], ["draft", "slim", "target"]),
        (["a", "b", "c", "d", "e", "f", "z"], ["draft", "draft", "mid", "mid", "slim", "slim", "target"]),
    ],
)
def test_roles_go_by_name_then_by_place(members, roles):
    assert [str(roles_of(members)[name]) for name in members] == roles


@pytest.mark.parametrize("name", ladders())
def test_every_ladder_prices_every_member_and_more_tokens_are_never_cheaper(name, trace):
    cost = ladder(name).cost(trace)
    for model in trace.about.models:
        seconds = [
            cost.forward_s(model, num_rows=rows, new_tokens=rows * wide, context_tokens=rows * 100)
            for rows in (1, 8, 32)
            for wide in (1, 8, 64)
        ]
        assert min(seconds) > 0
        assert cost.forward_s(model, num_rows=32, new_tokens=2048, context_tokens=3200) >= seconds[0]


@pytest.mark.parametrize("name", [name for name in ladders() if name != "cpu"])
def test_larger_roles_cost_no_less(name, trace):
    cost = ladder(name).cost(trace)
    alone = [cost.forward_s(model, num_rows=1, new_tokens=1, context_tokens=0) for model in trace.about.models]
    assert alone == sorted(alone)
    assert alone[-1] > alone[0]


def test_dear_lookups_take_13_percent_of_the_seconds_of_the_chain_that_says_so():
    recording = read_trace(shipped("recordings", "pico.trace"))
    tables, cost = TrieTables(recording), ladder("near").cost(recording)
    name = "ngram:6/draft:4/target"
    log = simulate(Scenario(tables=tables, cost=cost), make_policy(name, tables.pool), name)
    assert summarise_run(log).levels[0].share_of_seconds == pytest.approx(0.13, abs=0.01)


def test_a_ladder_that_is_none_is_told():
    with pytest.raises(ArgumentError, match=r"the ladder of a cell must be one of flat, even, .*, got 'steeper'"):
        ladder("steeper")
