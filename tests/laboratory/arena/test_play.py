"""A policy in a cell."""

from math import isclose

import pytest
from paceline.policies.spec import PolicySpec
from paceline_laboratory.arena.cells import ArenaCell, loads
from paceline_laboratory.arena.play import SERVED, STEPPED, WALKED, play

POLICIES = ("plain", "draft:4/target", "two-level", "via-sd")


def cell(load, ladder="steep"):
    return ArenaCell(recording="pico", ladder=ladder, load=load)


@pytest.mark.parametrize("load", loads())
@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_is_the_same_whenever_it_is_repeated(stage, load, policy):
    first, again = (play(stage, cell(load), PolicySpec.parse(policy), 1) for _ in range(2))
    assert first == again
    assert first.cell == cell(load)
    assert first.policy == policy


@pytest.mark.parametrize("load", ["batch-1", "batch-8"])
@pytest.mark.parametrize("policy", POLICIES)
def test_seconds_at_marks_rise_to_those_of_the_run(stage, load, policy):
    played = play(stage, cell(load), PolicySpec.parse(policy), 0)
    at_100, at_1000, at_10000 = played.seconds_at
    assert at_1000 is None
    assert at_10000 is None
    assert 0 < at_100 < played.seconds


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
