"""Rules and stops are arithmetic: the same verdict for floats, numpy arrays and torch tensors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.policies import (
    ConfidenceBelow,
    Divergence,
    EntropyAbove,
    Exact,
    Facts,
    GapBelow,
    Lenience,
    ProductBelow,
    Ratio,
    Signal,
    Typical,
)

PROBS = st.floats(0.0, 1.0)
SHARES = st.floats(0.01, 1.0)
FACTS = st.builds(
    Facts,
    same=st.booleans(),
    draft_prob=PROBS,
    target_prob=PROBS,
    top_prob=PROBS,
    entropy=st.floats(0.0, 10.0),
    tvd=PROBS,
)
RULES = st.one_of(
    st.just(Exact()),
    st.builds(Ratio, SHARES),
    st.builds(Typical, SHARES, SHARES),
    st.builds(Lenience, SHARES),
    st.builds(Divergence, PROBS),
)
SIGNALS = st.builds(Signal, prob=PROBS, entropy=st.floats(0.0, 10.0), gap=PROBS)
STOPS = st.one_of(
    st.builds(ConfidenceBelow, PROBS),
    st.builds(EntropyAbove, st.floats(0.0, 10.0)),
    st.builds(GapBelow, PROBS),
    st.builds(ProductBelow, PROBS),
)


def accepted_by_definition(rule, facts):
    """Each rule once more, in the words of its paper."""
    match rule:
        case Exact():
            return facts.same
        case Ratio(theta=share) | Lenience(lenience=share):
            return facts.target_prob >= share * facts.top_prob
        case Typical():
            return facts.target_prob > min(rule.eps, rule.delta * math.exp(-facts.entropy))
        case Divergence():
            return facts.tvd <= rule.tau
    raise AssertionError(rule)


@settings(deadline=None)
@given(RULES, FACTS)
def test_rules_accept_by_their_definition(rule, facts):
    assert rule.accepts(facts) == accepted_by_definition(rule, facts)


@settings(deadline=None)
@given(RULES, st.lists(FACTS, min_size=1, max_size=5))
def test_rules_work_elementwise_on_arrays_and_tensors(rule, rows):
    one_by_one = [bool(rule.accepts(facts)) for facts in rows]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    assert np.asarray(rule.accepts(Facts(*columns))).tolist() == one_by_one
    tensors = [torch.from_numpy(column) for column in columns]
    assert rule.accepts(Facts(*tensors)).tolist() == one_by_one


@settings(deadline=None)
@given(RULES)
def test_only_exact_is_lossless(rule):
    assert rule.lossless == isinstance(rule, Exact)


@settings(deadline=None)
@given(st.sampled_from([Ratio, Lenience]), SHARES, SHARES, FACTS)
def test_a_smaller_share_accepts_no_less(kind, one, other, facts):
    strict, lax = kind(max(one, other)), kind(min(one, other))
    assert not strict.accepts(facts) or lax.accepts(facts)


def test_an_unknown_distance_is_refused():
    """A model-free drafter has no distribution; NaN compares false."""
    facts = Facts(same=True, draft_prob=math.nan, target_prob=0.5, top_prob=0.5, entropy=1.0, tvd=math.nan)
    assert not Divergence(1.0).accepts(facts)


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (lambda: Ratio(0.0), r"theta must be in \(0, 1\], got 0.0"),
        (lambda: Ratio(1.5), r"theta must be in \(0, 1\], got 1.5"),
        (lambda: Ratio(math.nan), r"theta must be in \(0, 1\], got nan"),
        (lambda: Lenience(-1.0), r"lenience must be in \(0, 1\], got -1.0"),
        (lambda: Typical(0.0, 0.5), r"eps must be in \(0, 1\], got 0.0"),
        (lambda: Typical(0.5, 2.0), r"delta must be in \(0, 1\], got 2.0"),
        (lambda: Divergence(1.1), r"tau must be in \[0, 1\], got 1.1"),
        (lambda: Divergence(math.nan), r"tau must be in \[0, 1\], got nan"),
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
