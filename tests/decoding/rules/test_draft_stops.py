"""Stops are arithmetic: the same answer for floats and torch tensors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.policies import ConfidenceBelow, EntropyAbove, GapBelow, ProductBelow, Signal

PROBS = st.floats(0.0, 1.0)
SIGNALS = st.builds(Signal, prob=PROBS, entropy=st.floats(0.0, 10.0), gap=PROBS)
STOPS = st.one_of(
    st.builds(ConfidenceBelow, PROBS),
    st.builds(EntropyAbove, st.floats(0.0, 10.0)),
    st.builds(GapBelow, PROBS),
    st.builds(ProductBelow, PROBS),
)


def stopped_by_definition(stop, signal, product):
    match stop:
        case ConfidenceBelow():
            return signal.prob < stop.prob
        case EntropyAbove():
            return signal.entropy > stop.nats
        case GapBelow():
            return signal.gap < stop.gap
        case ProductBelow():
            return product < stop.prob
    raise AssertionError(stop)


@settings(deadline=None)
@given(STOPS, SIGNALS, PROBS)
def test_stops_hold_by_their_definition(stop, signal, product):
    assert stop.holds(signal, product) == stopped_by_definition(stop, signal, product)


@settings(deadline=None)
@given(STOPS, st.lists(st.tuples(SIGNALS, PROBS), min_size=1, max_size=5))
def test_stops_work_elementwise_on_tensors(stop, rows):
    one_by_one = [bool(stop.holds(signal, product)) for signal, product in rows]
    numbers = torch.tensor([[*signal, product] for signal, product in rows], dtype=torch.float64).T
    assert stop.holds(Signal(*numbers[:3]), numbers[3]).tolist() == one_by_one


@pytest.mark.parametrize("stop", [ConfidenceBelow(1.0), EntropyAbove(0.0), GapBelow(1.0)])
def test_a_drafter_without_a_distribution_never_stops(stop):
    nothing = Signal(math.nan, math.nan, math.nan)
    assert not stop.holds(nothing, math.nan)


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (lambda: ConfidenceBelow(-0.1), r"prob must be in \[0, 1\], got -0.1"),
        (lambda: EntropyAbove(-1.0), r"nats must be in \[0, inf\], got -1.0"),
        (lambda: EntropyAbove(math.nan), r"nats must be in \[0, inf\], got nan"),
        (lambda: GapBelow(2.0), r"gap must be in \[0, 1\], got 2.0"),
        (lambda: ProductBelow(7.0), r"prob must be in \[0, 1\], got 7.0"),
    ],
)
def test_thresholds_out_of_range_are_refused(build, rule):
    with pytest.raises(ValueError, match=rule):
        build()
