"""Intervals over seeds: Student's t, their coverage on normal draws, and where a comparison shows them."""

import json
from dataclasses import replace
from io import StringIO
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.reports import SideBySide, summarise_run
from paceline.reports.comparison import comparison_table, detail_tables
from paceline.reports.intervals import mean_interval, t_quantile
from rich.console import Console
from scipy.stats import t as student

from .test_summary import by_hand

META = {
    "trace": "log",
    "kind": "imported",
    "source": "spec-bench",
    "cost": "timed",
    "batch": 1,
    "seed": 3,
    "decide_s": 0.0,
}


# -- the interval


@pytest.mark.parametrize("degrees", [*range(1, 31), 99, 100, 1000])
def test_quantiles_of_students_t(degrees):
    assert t_quantile(degrees) == pytest.approx(student.ppf(0.975, degrees), rel=1e-12)


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_95_of_100_intervals_hold_the_mean_of_normal_draws(count):
    draws = np.random.default_rng(count).normal(5.0, 2.0, size=(4000, count))
    held = [low <= 5.0 <= high for low, high in (mean_interval(values).bounds for values in draws.tolist())]
    assert abs(np.mean(held) - 0.95) < 4 * sqrt(0.95 * 0.05 / 4000)


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8),
    shift=st.floats(-100, 100),
    scale=st.floats(0.01, 100),
)
def test_an_interval_moves_with_its_values(values, shift, scale):
    interval = mean_interval(values)
    low, high = interval.bounds
    assert interval.half_width >= 0
    assert low <= interval.mean <= high
    assert min(values) - 1e-9 <= interval.mean <= max(values) + 1e-9
    moved = mean_interval([scale * value + shift for value in values])
    assert moved.mean == pytest.approx(scale * interval.mean + shift, abs=1e-6)
    assert moved.half_width == pytest.approx(scale * interval.half_width, abs=1e-6)


def test_equal_values_leave_no_doubt():
    assert mean_interval([0.1] * 3).bounds == (0.1, 0.1)
    assert mean_interval([1.0, 3.0]).half_width == pytest.approx(12.706, abs=1e-3)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_one_value_has_no_interval(values):
    with pytest.raises(ValueError, match="an interval needs at least 2 values, got"):
        mean_interval(values)


# -- a comparison


def comparison(*further, baseline=100.0):
    """Of a policy that emitted 200 tokens/s at the first seed and `further` at others."""
    summary = replace(summarise_run(by_hand()), policy="draft", exact_share=0.5)
    row = replace(summary, output_tokens_per_s=200.0)
    repeats = tuple(replace(summary, output_tokens_per_s=speed) for speed in further)
    alone = None if baseline is None else replace(summary, policy="plain", output_tokens_per_s=baseline)
    return SideBySide(meta=META, baseline=alone, rows=(row,), repeats={"draft": repeats})


def shown(found):
    """Of a comparison its first table, of anything else itself."""
    stream = StringIO()
    Console(file=stream, width=160).print(comparison_table(found) if isinstance(found, SideBySide) else found)
    return stream.getvalue()


def test_a_policy_with_chance_is_shown_by_mean_and_interval():
    compared = comparison(220.0, 240.0)
    (row,) = compared.rows
    assert compared.output_tokens_per_s(row) == 220.0
    assert compared.speed_up(row) == pytest.approx(2.2)
    half_width = t_quantile(2) * 20 / sqrt(3)
    assert compared.output_tokens_per_s_interval(row).half_width == pytest.approx(half_width)
    (policy,) = json.loads(json.dumps(compared.to_json(), allow_nan=False))["policies"]
    assert policy["output_tokens_per_s"] == 220.0
    assert policy["seeds"] == 3
    assert policy["output_tokens_per_s_ci"] == pytest.approx([220 - half_width, 220 + half_width])
    assert policy["speed_up_ci"] == pytest.approx([2.2 - half_width / 100, 2.2 + half_width / 100])
    text = shown(compared)
    assert "2.20x ± 0.50" in text
    assert "220.0" in text
    assert "220.0 ± 49.7" in shown(detail_tables(compared)[0])
    assert "±: 95% interval of the mean over seeds 3 to 5" in text
    assert "0.5000" in text


def test_a_policy_without_chance_has_no_interval():
    compared = comparison()
    (policy,) = compared.to_json()["policies"]
    assert (policy["seeds"], policy["speed_up"]) == (1, 2.0)
    assert policy["speed_up_ci"] is policy["output_tokens_per_s_ci"] is None
    assert "±" not in shown(compared)


def test_without_a_baseline_no_speed_up_is_known():
    compared = comparison(220.0, baseline=None)
    (policy,) = compared.to_json()["policies"]
    assert policy["speed_up"] is policy["speed_up_ci"] is None
    assert policy["output_tokens_per_s_ci"][1] < inf
    assert "unknown" in shown(compared)


def test_the_title_says_imported_and_what_if():
    compared = comparison()
    assert "IMPORTED trace log (from spec-bench), 2 requests" in shown(compared)
    meta = {**META, "what_if": {"acceptance": {"draft": 0.05, "mid": -0.1}}, "cost_notes": ["measured elsewhere"]}
    text = shown(replace(compared, meta=meta))
    assert "WHAT IF: acceptance of draft +0.05, acceptance of mid -0.1; cost timed" in text
    assert "measured elsewhere" in text
