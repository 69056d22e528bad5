"""Seconds by member, measured or stated; and the running rate beside them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.trees import DraftTree, FixedTree
from paceline.policies import Draft, Outcome, Verify
from paceline.policies.blocks import acceptance_rate
from paceline.policies.check import check_pool
from paceline.policies.estimates import MemberSeconds

POOL = check_pool()
STATED = "draft:1/mid:3/slim:5/target:10"


def outcome(step, seconds, *, drafted=0, judged=0, rows=1):
    return Outcome("r7", step, drafted, judged, 0, 1, 1, None, (), seconds, rows, done=False)


def test_nothing_is_known_before_it_was_seen():
    seconds = MemberSeconds(POOL)
    assert seconds.draft_s("draft", 1) is None
    assert seconds.verify_s("target", 1) is None
    seconds.charge(outcome(Draft("ngram", 4), 1e-6))
    assert seconds.draft_s("ngram", 1) is None, "an empty lookup says nothing of a token"


def test_a_batch_is_charged_in_equal_shares():
    seconds = MemberSeconds(POOL)
    assert seconds.charge(outcome(Draft("draft", 4), 8.0, drafted=4, rows=2)) == 4.0
    assert seconds.draft_s("draft", 1) == 1.0


@given(st.floats(0.1, 5.0), st.floats(0.0, 1.0), st.lists(st.integers(0, 12), min_size=2, max_size=40))
def test_a_line_is_found_again(base, slope, widths):
    seconds = MemberSeconds(POOL, memory=50)
    for width in widths:
        seconds.charge(outcome(Verify("target"), base + slope * (width + 1), judged=width))
    if len(set(widths)) > 1:
        for width in (1, 5, 13):
            wanted = max(base + slope * width, 0.0)
            assert seconds.verify_s("target", width) >= 0.99 * min(wanted, base)
        assert seconds.verify_s("target", max(widths) + 1) == pytest.approx(base + slope * (max(widths) + 1), rel=1e-3)


@given(per_round=st.floats(0.0, 5.0), per_token=st.floats(0.01, 1.0), lengths=st.lists(st.integers(1, 8), min_size=2))
def test_what_a_draft_costs_by_the_round_is_found_again(per_round, per_token, lengths):
    seconds = MemberSeconds(POOL)
    for length in lengths:
        seconds.charge(outcome(Draft("draft", 8), per_round + per_token * length, drafted=length))
    if len(set(lengths)) > 1:
        for length in (1, 3, 16):
            assert seconds.draft_s("draft", length) == pytest.approx(per_round + per_token * length, rel=1e-3)


def test_drafts_of_one_length_say_nothing_of_a_round():
    seconds = MemberSeconds(POOL)
    for _ in range(3):
        seconds.charge(outcome(Draft("draft", 4), 2.0, drafted=4))
    assert [seconds.draft_s("draft", tokens) for tokens in (1, 4, 8)] == pytest.approx([0.5, 2.0, 4.0])


def test_stated_costs_are_charged_by_forward():
    seconds = MemberSeconds(POOL, STATED)
    assert seconds.charge(outcome(Draft("draft", 4), 99.0, drafted=3)) == 3.0
    assert seconds.charge(outcome(Verify("slim"), 99.0, judged=3)) == 5.0
    assert seconds.draft_s("ngram", 1) == 0.0
    assert seconds.verify_s("target", 9) == 10.0


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("draft:1/mid:3/slim:5", "costs must name every model of the pool, target is missing"),
        (STATED.replace("10", "0"), "costs must read member:number with numbers > 0, .* got 'target:0'"),
        (STATED.replace("10", "nan"), "got 'target:nan'"),
        (STATED.replace("10", "inf"), "got 'target:inf'"),
        (STATED.replace(":10", ""), "got 'target'"),
        (STATED + "/nobody:1", "unknown model 'nobody'"),
        (STATED + "/draft:2", "costs must name a member once, draft stands twice in"),
        (STATED + "/ngram:1/ngram:1", "costs must name a member once, ngram stands twice in"),
        ("", "unknown model ''"),
    ],
)
def test_texts_that_are_no_costs_are_refused(text, rule):
    with pytest.raises(ValueError, match=rule):
        MemberSeconds(POOL, text)


def test_a_rate_forgets():
    rate = acceptance_rate(memory=10)
    assert rate.rate == 0.5
    for _ in range(100):
        rate.note(0, 1)
    assert rate.rate < 0.01
    for _ in range(100):
        rate.note(4, 4)
    assert rate.rate > 0.99


def test_a_tree_costs_a_forward_for_each_layer():
    tree = outcome(DraftTree("mid", FixedTree.of_widths((4, 2, 1))), 9.0, drafted=20)
    assert MemberSeconds(POOL, STATED).charge(tree) == 9.0  # three of 3
    assert MemberSeconds(POOL).charge(tree) == 9.0  # as measured
