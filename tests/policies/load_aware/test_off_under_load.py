"""Speculation ends and begins exactly at the thresholds, between rounds."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.policies import PolicySpecError, check_policy, make_policy
from paceline.policies.about import about_of
from paceline.policies.check import check_pool
from paceline.policies.under_load import OffUnderLoad

from .loads import Rounds


def begun(**options):
    """(requests that ran, window) of every round of a check, which runs batches of 1, 4 and 16."""
    watched = []

    def build(pool):
        watched.append(Rounds(OffUnderLoad(pool, **options)))
        return watched[-1]

    assert check_policy(build).lossless
    return [pair for rounds in watched for pair in rounds.begun]


@settings(max_examples=10)
@given(st.integers(1, 20))
def test_speculation_is_off_exactly_from_the_threshold_on(at):
    rounds = begun(at=at)
    assert all(window == (4 if num_running < at else 0) for num_running, window in rounds)
    assert {1, 4, 16} <= {num_running for num_running, _ in rounds}


@settings(max_examples=10)
@given(st.dictionaries(st.integers(2, 16), st.integers(0, 9), max_size=4), st.integers(0, 9))
def test_the_table_says_the_window_of_every_load(later, first):
    table = {1: first} | later
    rounds = begun(table="/".join(f"{size}:{table[size]}" for size in sorted(table)), draft="mid")
    for num_running, window in rounds:
        assert window == table[max(size for size in table if size <= num_running)]


def test_another_policy_decides_below_the_threshold():
    policy = make_policy("off-under-load,policy=draft:2/mid:4/target,at=3", check_pool())
    assert [first for first, _ in policy.steps] == [1, 3]
    assert [str(part.spec) for _, part in policy.steps] == ["draft:2/mid:4/target", "target"]
    assert policy.most_pending == 6


def test_it_says_what_its_policy_says():
    assert not about_of(make_policy("off-under-load,policy=via-sd", check_pool())).lossless
    assert about_of(OffUnderLoad(check_pool())).lossless


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("at=0", "at must be >= 1, got 0"),
        ("table=1:4,at=3", "table goes without policy and at: its last window may be 0"),
        ("table=1:4,policy=plain", "table goes without policy and at"),
        ("policy=plain,draft=mid", "draft goes without policy, which has drafters of its own"),
        ("table=2:4", "table must begin at 1 request and go up, got '2:4' in '2:4'"),
        ("table=1:4/8:2/8:0", "table must begin at 1 request and go up, got '8:0'"),
        ("table=1:4/8", "table must read REQUESTS:WINDOW/..., as in 1:5/16:2/64:0, got '8' in '1:4/8'"),
        ("table=1:-4", "table must read REQUESTS:WINDOW"),
        ("table=1:9999999999", "draft tokens must be <= 1,000,000"),
        ("draft=target", "draft must be a member below the target, got 'target'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, rule):
    with pytest.raises(PolicySpecError, match=re.escape(rule)):
        make_policy(f"off-under-load,{options}", check_pool())
