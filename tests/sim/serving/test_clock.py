"""Picoseconds and seconds: rounded once, back again without loss where a float can tell picoseconds apart."""

from fractions import Fraction
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.serving.charges import to_ps, to_s
from paceline.traces.workloads.arrival import PS_PER_S


@given(st.integers(0, 2**51))
def test_picoseconds_come_back_from_seconds(ps):
    assert to_ps(to_s(ps)) == ps


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_rounding_keeps_the_order(one, other):
    assert (to_ps(one) <= to_ps(other)) or one > other


@given(st.floats(0, 2000))
def test_rounding_moves_an_instant_by_half_a_picosecond_at_most(seconds):
    """The product of floats is off by an eighth of a picosecond at 2,000 s, before it is rounded."""
    assert abs(to_ps(seconds) - Fraction(seconds) * PS_PER_S) <= Fraction(5, 8)


@pytest.mark.parametrize("seconds", [-1e-12, nan, inf])
def test_seconds_that_are_none_are_refused(seconds):
    with pytest.raises(ValueError, match=r"^seconds must be >= 0 and finite, got "):
        to_ps(seconds)
