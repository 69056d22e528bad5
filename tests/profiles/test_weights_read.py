"""Weights that another member has read since are away for less long."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.profile import WeightsRead

SHARES = {"target": {"slim": 0.6, "slimmer": 0.4}, "slim": {"target": 1.0}, "slimmer": {"target": 1.0}}


def test_what_was_never_read_is_away_for_ever():
    assert WeightsRead({}).away("draft", 5.0) == [(1.0, inf)]


def test_shared_weights_were_read_by_whoever_came_last():
    read = WeightsRead(SHARES)
    read.note("target", 1.0)
    read.note("slim", 4.0)
    assert read.away("target", 6.0) == [(0.6, 2.0), (pytest.approx(0.4), 5.0)]
    assert read.away("slim", 6.0) == [(1.0, 2.0)]
    read.note("slimmer", 5.0)
    assert read.away("target", 6.0) == [(0.4, 1.0), (pytest.approx(0.2), 2.0), (pytest.approx(0.4), 5.0)]
    read.note("target", 5.5)
    assert read.away("target", 6.0) == [(1.0, 0.5)]
    assert read.away("slim", 6.0) == [(1.0, 0.5), (0.0, 2.0)]


@given(st.lists(st.sampled_from(["target", "slim", "slimmer", "draft"])))
def test_shares_come_to_one(order):
    read = WeightsRead(SHARES)
    for now_s, member in enumerate(order):
        read.note(member, float(now_s))
    for member in ("target", "slim", "slimmer", "draft"):
        assert sum(share for share, _ in read.away(member, 100.0)) == pytest.approx(1.0)
