"""A rate that forgets: kept over judged, recent rounds with more weight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies.parts.acceptance_rate import AcceptanceRate


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=50), st.integers(1, 100), st.floats(0.0, 1.0))
def test_it_is_a_weighted_mean_of_rounds(rounds, memory, prior):
    rate = AcceptanceRate(memory=memory, prior=prior)
    assert rate.rate == pytest.approx(prior)
    told = [(2.0 * prior, 2.0), *((min(pair), max(pair)) for pair in rounds if max(pair))]
    for taken, asked in told[1:]:
        rate.note(taken, asked)
    kept = 1.0 - 1.0 / memory
    weights = [kept**age for age in reversed(range(len(told)))]
    taken, asked = (sum(w * pair[i] for w, pair in zip(weights, told, strict=True)) for i in (0, 1))
    assert rate.rate == pytest.approx(taken / asked)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"memory": 0}, "memory must be >= 1, got 0"),
        ({"memory": 4, "prior": 1.5}, r"prior must be in \[0, 1\], got 1.5"),
        ({"memory": 4, "prior": float("nan")}, r"prior must be in \[0, 1\], got nan"),
    ],
)
def test_what_is_out_of_range_is_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        AcceptanceRate(**options)
