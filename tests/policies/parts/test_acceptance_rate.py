"""A rate that forgets: kept over judged, recent rounds with more weight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies.blocks import RunningRatio, acceptance_rate


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=50), st.integers(1, 100))
def test_it_is_a_weighted_mean_of_rounds(rounds, memory):
    rate = acceptance_rate(memory=memory)
    assert rate.rate == pytest.approx(0.5)
    told = [(1.0, 2.0), *((min(pair), max(pair)) for pair in rounds if max(pair))]
    for taken, asked in told[1:]:
        rate.note(taken, asked)
    kept = 1.0 - 1.0 / memory
    weights = [kept**age for age in reversed(range(len(told)))]
    taken, asked = (sum(w * pair[i] for w, pair in zip(weights, told, strict=True)) for i in (0, 1))
    assert rate.rate == pytest.approx(taken / asked)


def test_a_memory_out_of_range_is_refused():
    with pytest.raises(ValueError, match="memory must be >= 1, got 0"):
        acceptance_rate(memory=0)


def test_a_ratio_of_nothing_is_none():
    ratio = RunningRatio(memory=3)
    with pytest.raises(ZeroDivisionError):
        _ = ratio.rate
    ratio.note(6.0, 4.0)
    assert (ratio.rate, ratio.num_rounds) == (1.5, 1)
