"""Times are read digit by digit: the nearest picosecond of what is written, whatever a float would make of it."""

from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.workloads.arrival import MOST_READ_PS, PS_PER_S, ps_of_decimal, ps_of_moment, ps_of_seconds


@given(st.decimals(min_value=0, max_value=10**9, allow_nan=False, allow_infinity=False))
def test_seconds_are_the_nearest_picosecond(value):
    wanted = int((value * PS_PER_S).to_integral_value(ROUND_HALF_UP)) if len(value.as_tuple().digits) <= 15 else None
    text = f"{value:f}"
    if wanted is not None and len(text) <= 40:
        assert ps_of_seconds(text) == wanted
        assert ps_of_decimal(value) == wanted


@given(st.integers(0, MOST_READ_PS), st.integers(0, 5))
def test_picoseconds_come_back(ps, zeros):
    whole, rest = divmod(ps, PS_PER_S)
    assert ps_of_seconds(f"{whole}.{rest:012d}{'0' * zeros}") == ps


@pytest.mark.parametrize("text", ["", "x", "1,5", "1_0", "nan", "inf", "0x1", "٣", "1" * 60])
def test_what_is_no_time_is_none(text):
    assert ps_of_seconds(text) is None


def test_sizes_beyond_all_stay_beyond():
    assert ps_of_decimal(Decimal("1e999999")) == MOST_READ_PS + 1
    assert ps_of_decimal(Decimal("-1e999999")) == -MOST_READ_PS - 1
    assert ps_of_decimal(Decimal("1e-999999")) == 0


def test_moments_differ_by_what_is_between():
    day = ps_of_moment("2024-02-29 00:00:00")
    assert ps_of_moment("2024-03-01 00:00:00.0000000000005+00:00") - day == 86_400 * PS_PER_S + 1
    assert ps_of_moment("2024-02-29T12:30:01.25Z") - day == (12 * 3600 + 30 * 60 + 1) * PS_PER_S + PS_PER_S // 4
    for text in ("2023-02-29 00:00:00", "2024-02-29", "2024-02-29 24:00:00", "2024-02-29 00:60:00", "x"):
        assert ps_of_moment(text) is None
