"""What rounds say of tokens that other rounds draft, against a process whose thresholds are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.difficulty import Beside, Outcome, falling, filter_positions
from paceline.sim.hazard import Hazard

from ...traces.rounds.rounds_strategies import FALLING, difficult_texts, rounds_over

RATES = st.lists(st.floats(0.02, 0.98), min_size=1, max_size=6)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_thresholds_are_found_where_rates_by_depth_hide_them(rho):
    trace = rounds_over(difficult_texts(rho, requests=150), FALLING, 8)
    fit = Hazard(trace).fit(0)
    assert fit.persistence == pytest.approx(rho, abs=0.1)
    found = filter_positions(fit.depths.hazards(0.0), fit.decisions, fit.window, fit.persistence)
    np.testing.assert_allclose(_shares(found.falling), FALLING, atol=0.08)
    if rho == 0.8:  # the rates themselves are all but level
        assert max(fit.depths.hazards(0.0)[1:]) - min(fit.depths.hazards(0.0)[1:]) < 0.1


def _shares(thresholds):
    grid = np.linspace(-8, 8, 4001)
    density = np.exp(-0.5 * grid**2) / np.exp(-0.5 * grid**2).sum()
    return np.interp(thresholds, grid, np.cumsum(density))


@given(rates=RATES, rho=st.floats(0, 0.95), here=st.integers(0, 9), there=st.integers(0, 9), data=st.data())
def test_a_round_started_later_agrees_at_least_as_often(rates, rho, here, there, data):
    found = filter_positions(rates, np.full(len(rates), 1e4), data.draw(st.integers(1, 8)), rho)
    agreed, refused, reached = (found.chance(here, Beside(outcome, there)) for outcome in Outcome)
    assert 0 <= min(agreed, refused, reached) <= max(agreed, refused, reached) <= 1 + 1e-9
    if here <= there:
        assert agreed == pytest.approx(1)
    if here >= there:
        assert refused == pytest.approx(0)
    assert found.chance(here + 1, Beside(Outcome.reached, there)) <= reached + 1e-9


@given(rates=RATES, rho=st.floats(0, 0.95))
def test_rates_come_out_as_they_went_in(rates, rho):
    """Were the thresholds not made to fall, rounds that got to a depth would agree there at its rate."""
    found = filter_positions(rates, np.full(len(rates), 1e12), len(rates), rho)
    if (np.diff(found.thresholds) < 0).all():
        for depth, rate in enumerate(rates):
            assert found.chance(depth, Beside(Outcome.reached, depth)) == pytest.approx(rate, abs=1e-6)


def test_what_did_not_happen_where_rates_come_from_has_an_answer():
    found = filter_positions([1.0, 0.0], np.array([100.0, 100.0]), 2, 0.3)
    for outcome in Outcome:
        for there in range(4):
            assert 0 <= found.chance(0, Beside(outcome, there)) <= 1


def test_levels_fall_by_what_cannot_be_chance():
    values = np.array([1.0, 0.99, 1.2, 0.2, 0.19])
    assert falling(values, np.full(5, 1e-8)).tolist() == pytest.approx([1.063333, 1.063333, 1.063333, 0.2, 0.19])
    assert falling(values, np.full(5, 0.01)).tolist() == pytest.approx([1.063333] * 3 + [0.195] * 2)
    assert falling(values, np.full(5, 10.0)).tolist() == pytest.approx([values.mean()] * 5)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(1e-6, 10)), min_size=1, max_size=8))
def test_levels_never_rise_and_keep_the_mean(pairs):
    values, variances = np.array(pairs).T
    level = falling(values, variances)
    assert (np.diff(level) <= 1e-9).all()
    assert (level / variances).sum() == pytest.approx((values / variances).sum(), rel=1e-6, abs=1e-6)
