"""Windows are the least of the theorem's own sum, and the sum is what a run takes."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.benchmarks.shared.closed_forms import chain_speed
from paceline.policies import Member, Pool, make_policy
from paceline.policies.cascades import Polybasic, seconds_per_token
from paceline.policies.check import check_pool

from ..closed_forms import best_window
from ..lossless.recordings import flat, recording, replayed, seconds_of

THREE = Pool((Member(name="draft"), Member(name="mid"), Member(name="target")))
RATES = st.floats(0.05, 0.98)


def theorem(lengths, forward_s, beta):
    """T / N = sum_{i < n} T_i / L_i + beta T_n / L_(n-1), models from the target down."""
    terms = [taken / length for taken, length in zip(forward_s, lengths, strict=False)]
    return sum(terms) + beta * forward_s[-1] / lengths[-1]


def lengths_of(rates, windows):
    """L_i of the levels that judge, from the target down: tokens that stay in the end, by forward."""
    handed = sum(rates[0] ** i for i in range(windows[0] + 1))
    if len(rates) == 1:
        return [handed]
    gathered = max(windows[1], handed)
    kept = (1 - rates[1] ** (gathered + 1)) / (1 - rates[1])
    return [kept, kept * handed / gathered]


def brute_force(rates, costs, most):
    """(seconds per token, notation) of the best of all chains and windows."""
    found = [(costs["target"], "target")]
    for members in (("draft", "target"), ("mid", "target"), ("draft", "mid", "target")):
        pairs = [rates[pair] for pair in pairwise(members)]
        forward_s = [costs[name] for name in reversed(members)]
        for windows in product(range(1, most + 1), repeat=len(pairs)):
            below = "/".join(f"{name}:{window}" for name, window in zip(members, windows, strict=False))
            found.append((theorem(lengths_of(pairs, windows), forward_s, windows[0]), f"{below}/target"))
    return min(found)


def tell(policy, rates):
    """The policy learns of acceptance without a run, and chooses."""
    for pair, rate in rates.items():
        ratio = policy._rates[pair]
        ratio._above, ratio._below = rate, 1.0
    policy._choose()


@given(
    st.tuples(RATES, RATES, RATES),
    st.sampled_from([(1, 3, 6), (1, 10, 50), (1, 1, 4), (1, 30, 300), (5, 6, 7)]),
    st.integers(1, 7),
)
def test_the_choice_is_that_of_brute_force_over_the_theorem(rates, costs, most):
    rates = dict(zip((("draft", "target"), ("mid", "target"), ("draft", "mid")), rates, strict=True))
    costs = dict(zip(THREE.names, costs, strict=True))
    policy = Polybasic(THREE, most=most, costs="/".join(f"{name}:{cost}" for name, cost in costs.items()))
    tell(policy, rates)
    least, _ = brute_force(rates, costs, most)
    members, windows = policy._best.spec.members, policy._best.spec.windows
    pairs = [rates[pair] for pair in pairwise(members)]
    forward_s = [costs[name] for name in reversed(members)]
    chosen = theorem(lengths_of(pairs, windows), forward_s, windows[0]) if windows else costs["target"]
    assert chosen == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize(("rate", "ratio"), [(0.5, 0.05), (0.8, 0.1), (0.9, 0.3), (0.3, 0.5)])
def test_of_two_levels_it_is_the_best_window(rate, ratio):
    pool = Pool((Member(name="draft"), Member(name="target")))
    policy = Polybasic(pool, most=16, costs=f"draft:{ratio}/target:1")
    tell(policy, {("draft", "target"): rate})
    best = best_window(rate, ratio, most=16)
    assert policy.chain == (f"draft:{best}/target" if best else "target")


@pytest.mark.parametrize("rates", [(0.5, 0.8), (0.7, 0.9), (0.9, 0.6), (0.3, 0.95), (0.9, 0.95)])
@pytest.mark.parametrize("forward_s", [(1.0, 6.0, 40.0), (1.0, 3.0, 10.0), (1.0, 30.0, 300.0)])
def test_its_windows_take_little_more_than_the_best_of_three_levels(rates, forward_s):
    """The sum leaves out that the last forward of the middle overshoots; `chain_speed` has it."""
    most, verify_s = 12, np.repeat([forward_s[1:]], 14, axis=0).T
    expected = seconds_per_token(rates, forward_s[0] * np.arange(1.0, most + 1.0), verify_s)
    windows = product(range(1, most + 1), repeat=2)
    exact = np.array([chain_speed(rates, pair, forward_s).seconds_per_token for pair in windows]).reshape(most, most)
    assert exact[np.unravel_index(expected.argmin(), expected.shape)] < 1.05 * exact.min()
    np.testing.assert_allclose(expected[:, 0], exact[:, 0], rtol=0.2)


def test_it_learns_to_be_faster_than_its_warm_up():
    tables, cost = recording(0.4, 0.9), flat(draft=0.02, mid=0.1, target=1.0)
    policy = Polybasic(tables.pool)
    taken = seconds_of(replayed(tables, cost, policy))
    fixed = [
        seconds_of(replayed(tables, cost, make_policy(text, tables.pool)))
        for text in ("draft:4/target", "mid:4/target", "draft:4/mid:6/target")
    ]
    assert taken < min(fixed)


def test_where_drafting_does_not_pay_the_target_decodes_alone():
    tables = recording(0.2)
    policy = Polybasic(tables.pool)
    replayed(tables, flat(draft=0.6, target=1.0), policy)
    assert policy.chain == "target"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"most": 0}, r"most must be in \[1, 64\], got 0"),
        ({"most": 65}, r"most must be in \[1, 64\], got 65"),
        ({"warmup": 0}, r"warmup must be in \[1, 1,000,000\], got 0"),
        ({"every": 0}, r"every must be in \[1, 1,000,000\], got 0"),
        ({"refresh": 17}, r"refresh must be in \[0, every=16\], got 17"),
        ({"memory": 0}, "memory must be >= 1, got 0"),
        ({"costs": "draft:1"}, "costs must name every model of the pool, mid, slim, target is missing"),
    ],
)
def test_options_out_of_range_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        Polybasic(check_pool(), **options)


def test_it_needs_a_model_below_the_target():
    for members in ((Member(name="target"),), (Member(name="ngram", model_free=True), Member(name="target"))):
        with pytest.raises(ValueError, match="policy polybasic needs a model below the target"):
            Polybasic(Pool(members))
