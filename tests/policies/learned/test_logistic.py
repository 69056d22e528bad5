"""Chances that were fitted are those of largest likelihood; how they rank is counted pair by pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies.learned import RIDGE, chances_of, fit_logistic, fit_of


@st.composite
def outcomes(draw):
    """Rows of two numbers, and what happened; both values happen."""
    count = draw(st.integers(2, 40))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    happened = rng.random(count) < 0.6
    happened[0], happened[-1] = True, False
    return np.round(rng.normal(size=(count, 2)), draw(st.integers(0, 3))), happened


@given(outcomes())
def test_no_step_from_the_fitted_weights_gains(given):
    rows, happened = given
    weights = fit_logistic(rows, happened)
    wrong = chances_of(rows, weights) - happened
    slope = np.concatenate([[wrong.sum()], rows.T @ wrong + RIDGE * weights[1:]])
    assert slope == pytest.approx(np.zeros(3), abs=1e-6)


@given(outcomes())
def test_chances_add_up_to_what_happened(given):
    rows, happened = given
    assert chances_of(rows, fit_logistic(rows, happened)).sum() == pytest.approx(happened.sum(), abs=1e-6)


def test_many_rows_give_the_weights_back():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(40_000, 2))
    happened = rng.random(40_000) < chances_of(rows, np.array([0.5, -2.0, 1.0]))
    assert fit_logistic(rows, happened) == pytest.approx([0.5, -2.0, 1.0], abs=0.06)


@given(outcomes())
def test_the_auc_counts_pairs(given):
    rows, happened = given
    chances = chances_of(rows, np.array([0.0, 1.0, 0.0]))
    above = chances[happened][:, None], chances[~happened][None, :]
    pairs = (above[0] > above[1]) + 0.5 * (above[0] == above[1])
    assert fit_of(chances, happened).auc == pytest.approx(pairs.mean())


def test_calibration_is_how_far_chances_are_from_shares():
    happened = np.arange(100) % 2 == 0
    assert fit_of(np.full(100, 0.5), happened).calibration_error == pytest.approx(0.0)
    assert fit_of(np.full(100, 0.9), happened).calibration_error == pytest.approx(0.4)
    assert fit_of(np.where(happened, 1.0, 0.0), happened).auc == 1.0


@pytest.mark.parametrize("happened", [np.ones(3, dtype=bool), np.zeros(3, dtype=bool)])
def test_one_value_alone_is_refused(happened):
    with pytest.raises(ValueError, match="happened must hold both values"):
        fit_logistic(np.zeros((3, 1)), happened)
