"""Limits as they are typed: one grammar, and what is near to it refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.reports.limits import OF_LATENCY, SIGNS, figure_named, limits_of, service_limits

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
LIMIT = st.tuples(st.sampled_from([*OF_LATENCY]), st.sampled_from([*SIGNS]), NUMBERS)


@given(st.lists(LIMIT, min_size=1, max_size=4), st.sampled_from(["", " "]))
def test_what_is_said_of_limits_reads_as_them(asked, space):
    """Under either name of a latency; the sign and the bound decide as Python's own comparison does."""
    short = ",".join(f"{name}{space}{sign}{space}{bound!r}s" for name, sign, bound in asked)
    flat = ",".join(f"{OF_LATENCY[name]}{space}{sign}{space}{bound!r}s" for name, sign, bound in asked)
    known = [*OF_LATENCY.values()]
    found = limits_of(short, known, argument="limits")
    assert found == limits_of(flat, known, argument="limits")
    assert [(one.name, one.sign, one.bound) for one in found] == asked
    for one in found:
        for value in (one.bound, one.bound + 1, one.bound - 1):
            assert one.kept(value) == eval(f"value {one.sign} bound", {"value": value, "bound": one.bound})


def test_as_they_are_printed():
    found = service_limits(" ttft_s_p99<1 ,slo_share >= .9, p99_tpot < 30ms", argument="slo")
    assert ", ".join(map(str, found)) == "p99_ttft < 1, slo_share >= 0.9, p99_tpot < 0.03"
    assert found[0].to_json() == {"figure": "ttft_s_p99", "sign": "<", "bound": 1.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("p99_ttf < 1", "`slo` knows no figure 'p99_ttf': did you mean p99_ttft"),
        ("ttft_p99 < 1", "`slo` knows no figure 'ttft_p99': did you mean p99_ttft?"),
        ("p99_ttft_ms < 1", "`slo` knows no figure 'p99_ttft_ms': did you mean p99_ttft?"),
        ("TTFT < 1", "`slo` knows no figure 'TTFT': say which one: mean_ttft or p50_ttft or p90_ttft or p95_ttft"),
        ("goodput < 1", "`slo` knows no figure 'goodput': known are mean_ttft"),
        ("p99_ttft", "`slo` must be NAME < NUMBER, with <, <=, > or >=, as in 'p99_ttft < 1, p99_tpot < 0.03', got"),
        ("p99_ttft = 1", "`slo` must be NAME < NUMBER"),
        ("p99_ttft == 1", "`slo` must be NAME < NUMBER"),
        ("0.1 < p99_ttft < 1", "`slo` must be NAME < NUMBER"),
        ("p99_ttft < 1,", "`slo` must be NAME < NUMBER"),
        ("", "`slo` must be NAME < NUMBER"),
        ("p99_ttft < 200", "`slo` p99_ttft must say its unit above 10: 200ms or 200s, got 200"),
        ("tpot_s_p99 < 30", "`slo` tpot_s_p99 must say its unit above 2: 30ms or 30s, got 30"),
        ("p99_e2e < 5000", "`slo` p99_e2e must say its unit above 100: 5000ms or 5000s, got 5000"),
        ("p99_ttft < 5m", "`slo` p99_ttft must have seconds as its bound, as in 0.2 or 200ms, got '5m'"),
        ("p99_ttft < inf", "`slo` p99_ttft must have seconds as its bound, as in 0.2 or 200ms, got 'inf'"),
        ("p99_ttft < 1_0", "`slo` p99_ttft must have seconds as its bound, as in 0.2 or 200ms, got '1_0'"),
        ("slo_share > 90%", "`slo` slo_share must have a number as its bound, got '90%'"),
        ("p99_ttft > 1", "`slo` p99_ttft must have < before its bound, got 'p99_ttft > 1'"),
        ("slo_share < 0.9", "`slo` slo_share must have > before its bound, got 'slo_share < 0.9'"),
        ("p99_ttft < 0", "`slo` p99_ttft must have a bound > 0 and < 1e+09, got 0"),
        ("slo_share > 1", "`slo` slo_share must have a bound > 0 and < 1, or >= 1, got 1"),
        ("p99_ttft < 1, ttft_s_p99 < 2", "`slo` must name a figure once, got p99_ttft twice"),
    ],
)
def test_what_is_no_service_level_is_one_line(text, says):
    with pytest.raises(ArgumentError) as refusal:
        service_limits(text, argument="slo")
    assert str(refusal.value).startswith(says)
    assert "\n" not in str(refusal.value)


def test_a_latency_that_no_figure_is_of_is_an_unknown_one():
    with pytest.raises(ArgumentError, match=r"^`objective` knows no figure 'TTFT': known are speed_up$"):
        figure_named("TTFT", ["speed_up"], argument="objective")
