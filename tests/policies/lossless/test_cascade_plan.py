"""Pieces of a round are added while it gets cheaper per token; acceptance moves by 0.7 and 0.3."""

import pytest
from paceline.policies import Draft, Member, Pool, Verify
from paceline.policies.cascades import CascadePlanner
from paceline.policies.estimates import MemberSeconds

from ..closed_forms import best_window

TWO = Pool((Member(name="draft"), Member(name="target")))
THREE = Pool((Member(name="draft"), Member(name="mid"), Member(name="target")))


def planner(pool, costs, rates, *, most=16):
    made = CascadePlanner(pool, MemberSeconds(pool, costs), most=most, recent=0.3)
    for (drafter, verifier), rate in rates.items():
        made.note(drafter, verifier, round(1000 * rate), 1000)
    made.estimate()
    return made


@pytest.mark.parametrize(("rate", "ratio"), [(0.5, 0.05), (0.8, 0.1), (0.9, 0.3), (0.3, 0.5)])
def test_with_one_drafter_the_plan_is_the_best_window(rate, ratio):
    made = planner(TWO, f"draft:{ratio}/target:1", {("draft", "target"): rate})
    best = best_window(rate, ratio, most=16)
    assert made.plan() == ((Draft("draft", best),) if best else ())


def test_later_tokens_are_left_to_a_cheaper_member():
    """A horizontal cascade: the better drafter first, the cheap one while it still pays."""
    made = planner(THREE, "draft:0.01/mid:0.3/target:1", {("draft", "target"): 0.45, ("mid", "target"): 0.95})
    plan = made.plan()
    assert [step.model for step in plan if isinstance(step, Draft)][-1] == "draft"
    assert "mid" in {step.model for step in plan}


def test_a_middle_member_judges_for_the_target_where_costs_are_far_apart():
    """A vertical cascade at costs 1 : 10 : 100."""
    rates = {("draft", "target"): 0.6, ("mid", "target"): 0.95, ("draft", "mid"): 0.7}
    plan = planner(THREE, "draft:1/mid:10/target:100", rates).plan()
    assert Verify("mid") in plan


def test_rates_move_by_the_share_of_the_recent_ones():
    made = planner(TWO, "draft:1/target:10", {("draft", "target"): 0.5})
    made.note("draft", "target", 10, 10)
    made.estimate()
    made.estimate()  # nothing new: nothing moves
    assert made._rates["draft", "target"] == pytest.approx(0.7 * 0.5 + 0.3 * 1.0)


def test_no_more_is_pending_than_allowed():
    rates = {("draft", "target"): 0.99, ("mid", "target"): 0.99, ("draft", "mid"): 0.99}
    for most in (1, 3, 8):
        plan = planner(THREE, "draft:0.01/mid:0.02/target:1", rates, most=most).plan()
        assert 1 <= sum(step.tokens for step in plan if isinstance(step, Draft)) <= most
