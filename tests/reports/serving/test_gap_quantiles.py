"""Quantiles of runs of gaps are those of all gaps written out one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.reports.serving import gap_percentiles
from paceline.runs.serving import GAP_FIELDS, total_gaps, total_ps


@st.composite
def runs_of_gaps(draw, most_ps):
    """Runs that rise, fall and stand still, ties among them; none holds a gap below zero."""
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 12))
        first, last = draw(st.integers(0, most_ps)), draw(st.integers(0, most_ps))
        increment = 0 if count == 1 else int((last - first) / (count - 1))
        rows.append((first, increment, count, draw(st.integers(1, 5))))
    return {name: np.array(column) for name, column in zip(GAP_FIELDS, zip(*rows, strict=True), strict=True)}


def written_out(gaps):
    runs = zip(*(gaps[name].tolist() for name in GAP_FIELDS), strict=True)
    return [
        first + place * increment
        for first, increment, count, rows in runs
        for place in range(count)
        for _ in range(rows)
    ]


@given(gaps=st.sampled_from([3, 40, 10**6]).flatmap(runs_of_gaps), percents=st.lists(st.integers(0, 100), min_size=1))
def test_percentiles_of_runs_are_those_of_all_gaps(gaps, percents):
    every = written_out(gaps)
    assert (total_gaps(gaps), total_ps(gaps)) == (len(every), sum(every))
    assert gap_percentiles(gaps, percents) == pytest.approx(np.percentile(every, percents).tolist(), rel=1e-12)


@given(gaps=runs_of_gaps(2**61))
def test_gaps_of_weeks_are_exact(gaps):
    """Beyond what floats tell apart."""
    every = sorted(written_out(gaps))
    assert total_ps(gaps) == sum(every)
    assert gap_percentiles(gaps, [0, 100]) == [float(every[0]), float(every[-1])]


def test_millions_of_gaps_cost_what_their_runs_cost():
    gaps = {"first_ps": [10, 5], "increment_ps": [1, 0], "count": [10**6, 1], "rows": [10**6, 10**12]}
    columns = {name: np.array(column) for name, column in gaps.items()}
    assert gap_percentiles(columns, [0, 50, 75, 100]) == [5.0, 7.5, 500_009.25, 1_000_009.0]
