"""Stops are arithmetic: the same answer for floats and torch tensors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.rules import token_factor
from paceline.policies import ConfidenceBelow, EntropyAbove, GapBelow, ProductBelow, RefusalAbove, Signal

PROBS = st.floats(0.0, 1.0)
SIGNALS = st.builds(Signal, prob=PROBS, entropy=st.floats(0.0, 10.0), gap=PROBS)
WEIGHTS = st.floats(-50.0, 50.0)
REFUSALS = st.builds(
    RefusalAbove, chance=PROBS, bias=WEIGHTS, prob=WEIGHTS, root_entropy=WEIGHTS, gap=WEIGHTS, place=WEIGHTS
)
STOPS = st.one_of(
    REFUSALS,
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
        case RefusalAbove():
            return 1.0 - product > stop.chance
    raise AssertionError(stop)


@given(STOPS, SIGNALS, PROBS)
def test_stops_hold_by_their_definition(stop, signal, product):
    assert stop.holds(signal, product) == stopped_by_definition(stop, signal, product)


@given(STOPS, st.lists(st.tuples(SIGNALS, PROBS), min_size=1, max_size=5))
def test_stops_work_elementwise_on_tensors(stop, rows):
    one_by_one = [bool(stop.holds(signal, product)) for signal, product in rows]
    numbers = torch.tensor([[*signal, product] for signal, product in rows], dtype=torch.float64).T
    assert stop.holds(Signal(*numbers[:3]), numbers[3]).tolist() == one_by_one


@given(REFUSALS, st.lists(SIGNALS, min_size=1, max_size=6))
def test_a_refusal_is_the_chance_that_not_all_are_kept(stop, signals):
    factors = [token_factor(stop)(signal, index) for index, signal in enumerate(signals)]
    for index, (signal, factor) in enumerate(zip(signals, factors, strict=True)):
        sums = (stop.prob * signal.prob, stop.root_entropy * math.sqrt(signal.entropy), stop.gap * signal.gap)
        odds = math.exp(stop.bias + sum(sums) + stop.place / (1 + index))
        assert factor == pytest.approx(odds / (1.0 + odds), abs=1e-12)
    numbers = torch.tensor([list(signal) for signal in signals], dtype=torch.float64).T
    places = torch.arange(len(signals), dtype=torch.float64)
    assert token_factor(stop)(Signal(*numbers), places).tolist() == pytest.approx(factors, abs=1e-12)


@pytest.mark.parametrize("stop", [ProductBelow(0.5), ConfidenceBelow(0.5), None])
def test_rules_without_a_factor_multiply_probabilities(stop):
    assert token_factor(stop)(Signal(0.25, 1.0, 0.1), 7) == 0.25


LEAST = {"chance": 0.0, "bias": 0.0, "prob": 0.0, "root_entropy": 0.0, "gap": 0.0, "place": 0.0}


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
        (lambda: RefusalAbove(**{**LEAST, "chance": 1.5}), r"chance must be in \[0, 1\], got 1.5"),
        (lambda: RefusalAbove(**{**LEAST, "gap": 51.0}), r"gap must be in \[-50, 50\], got 51.0"),
        (lambda: RefusalAbove(**{**LEAST, "bias": math.nan}), r"bias must be in \[-50, 50\], got nan"),
    ],
)
def test_thresholds_out_of_range_are_refused(build, rule):
    with pytest.raises(ValueError, match=rule):
        build()
