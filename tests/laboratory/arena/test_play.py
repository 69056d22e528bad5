"""A policy in a cell: orders of a recording, what its runs share, batches and arrivals."""

from dataclasses import replace
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.files import shipped
from paceline.decoding.steps import Verify
from paceline.policies.spec import PolicySpec, make_policy
from paceline.sim.contexts import TrieTables
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.store import read_trace
from paceline_laboratory.arena.cells import ArenaCell, loads
from paceline_laboratory.arena.play import PARTS, SERVED, STEPPED, WALKED, play, reordered, served

POLICIES = ("plain", "draft:4/target", "two-level", "via-sd")
RECORDING = read_trace(shipped("recordings", "pico.trace"))
IDS = [request.request_id for request in RECORDING.requests]


def cell(load, ladder="steep"):
    return ArenaCell(recording="pico", ladder=ladder, load=load)


def ids(recording):
    return [request.request_id for request in recording.requests]


@given(st.integers(1, 10_000))
def test_another_order_has_the_same_requests_in_each_quarter(seed):
    other = reordered(RECORDING, seed)
    found, size = ids(other), len(IDS) // PARTS
    for part in range(PARTS):
        assert sorted(found[part * size : (part + 1) * size]) == sorted(IDS[part * size : (part + 1) * size])
    assert replace(other, requests=RECORDING.requests) == RECORDING


def test_seed_0_is_the_recorded_order_and_others_are_not():
    assert ids(reordered(RECORDING, 0)) == IDS
    assert IDS != ids(reordered(RECORDING, 1)) == ids(reordered(RECORDING, 1)) != ids(reordered(RECORDING, 2))


@pytest.mark.parametrize(("policy", "seed"), [("two-level", 0), ("draft:3/mid:6/target", 1), ("specrouter", 2)])
def test_an_order_shares_its_tables_and_is_played_as_if_it_had_its_own(stage, policy, seed):
    shared, own = stage.tables(seed), TrieTables(reordered(stage.recording, seed))
    logs = [
        simulate(Scenario(tables=tables, cost=stage.cost("steep"), seed=seed), make_policy(policy, tables.pool), policy)
        for tables in (shared, own)
    ]
    for name, column in logs[0].steps.items():
        assert column.tolist() == logs[1].steps[name].tolist()
    first = stage.recording.requests[0].request_id
    assert shared.of(first) is stage.tables(0).of(first)


def test_capacity_is_what_the_target_alone_writes_in_a_large_batch(stage):
    alone = 1 / stage.cost("even").forward_s("target", num_rows=1, new_tokens=1, context_tokens=0)
    assert alone < stage.capacity_per_s("even") < 32 * alone


class Looking:
    """Plain decoding that notes what was asked, and how much of the answer it saw."""

    def __init__(self, pool):
        self._step = Verify(pool.target)
        self.seen = {}

    def decide(self, seen):
        self.seen[seen.request_id] = (seen.tag, seen.prompt, tuple(seen.emitted_from(0)))
        return self._step

    def learn(self, outcome):
        pass


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_request_comes_once_and_is_answered_as_it_was_recorded(stage, seed):
    tables = stage.tables(seed)
    policy = Looking(tables.pool)
    found = served(tables, stage.cost("even"), policy, "looking", tokens_per_s=50.0, seed=seed)
    answers = {(one.tag, one.prompt): one.trie.token[one.trie.trunk[1:]].tolist() for one in tables.trace.requests}
    assert sorted((tag, prompt) for tag, prompt, _ in policy.seen.values()) == sorted(answers)
    assert found.tokens == sum(map(len, answers.values()))
    for tag, prompt, begun in policy.seen.values():
        assert list(begun) == answers[tag, prompt][: len(begun)]


@pytest.mark.parametrize(
    ("load", "policy"),
    [(load, POLICIES[(place + more) % len(POLICIES)]) for place, load in enumerate(loads()) for more in (0, 1)],
)
def test_a_run_is_the_same_whenever_it_is_repeated(stage, load, policy):
    first, again = (play(stage, cell(load), PolicySpec.parse(policy), 1) for _ in range(2))
    assert first == again
    assert (first.cell, first.policy) == (cell(load), policy)
    at_100, *later = first.seconds_at
    assert later == [None, None]
    assert at_100 is None if load in ("half", "ninety") else 0 < at_100 < first.seconds


def test_one_request_at_a_time_another_order_takes_a_fixed_chain_as_long(stage):
    """What it plays does not depend on the order, and its answers do not either."""
    runs = [play(stage, cell("batch-1"), PolicySpec.parse("draft:4/target"), seed) for seed in (0, 1)]
    assert runs[0].tokens == runs[1].tokens
    assert isclose(runs[0].seconds, runs[1].seconds, rel_tol=1e-9)


def test_what_is_said_of_quality_is_of_lossy_policies(stage):
    lossless, lossy = (play(stage, cell("batch-1"), PolicySpec.parse(name), 0) for name in ("two-level", "via-sd"))
    assert lossless.same_share is lossless.divergences is None
    assert 0 <= lossy.same_share <= 1
    assert lossy.divergences > 0


def test_who_is_asked_step_by_step_thinks(stage):
    paths = {name: play(stage, cell("batch-1"), PolicySpec.parse(name), 0) for name in ("draft:4/target", "two-level")}
    assert paths["draft:4/target"].path == WALKED
    assert paths["draft:4/target"].think_us is None
    assert paths["two-level"].path == STEPPED
    assert paths["two-level"].think_us > 0
    assert play(stage, cell("half"), PolicySpec.parse("two-level"), 0).path == SERVED


def test_arrivals_at_nine_tenths_find_a_busier_device_than_at_half(stage):
    plain = PolicySpec.parse("plain")
    half, ninety = (play(stage, cell(load), plain, 0) for load in ("half", "ninety"))
    assert half.tokens == ninety.tokens
    assert ninety.tokens_per_s > half.tokens_per_s  # more requests share a forward
    assert ninety.mean_e2e_s > half.mean_e2e_s


def test_what_a_policy_lacks_is_told_with_its_name(stage):
    with pytest.raises(ValueError, match="eagle:2/target"):
        play(stage, cell("batch-1"), PolicySpec.parse("eagle:2/target"), 0)
