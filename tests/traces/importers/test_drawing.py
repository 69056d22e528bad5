"""Drawn rounds meet the totals exactly, and are as likely as the assumption says."""

from collections import Counter
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.importers.totals import constant_hazard, draw_accepted, pair, place, spread

BOUNDS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8)


@given(BOUNDS, st.data())
def test_a_spread_adds_up_within_bounds_and_is_even(bounds, data):
    least = np.array([low for low, _ in bounds])
    most = np.array([low + more for low, more in bounds])
    total = data.draw(st.integers(int(least.sum()), int(most.sum())))
    counts = spread(total, least, most, np.random.default_rng(0))
    assert counts.sum() == total
    assert (counts >= least).all()
    assert (counts <= most).all()
    free = [count for count, low, high in zip(counts, least, most, strict=True) if low < count < high]
    assert not free or max(free) - min(free) <= 1


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.data())
def test_accepted_tokens_add_up_and_fit_their_drafts(drafted, data):
    drafted = np.array(drafted)
    total = data.draw(st.integers(0, int(drafted.sum())))
    accepted = draw_accepted(total, drafted, np.random.default_rng(1))
    assert accepted.sum() == total
    assert (accepted >= 0).all()
    assert (accepted <= drafted).all()


def test_accepted_tokens_are_as_likely_as_the_assumption_says():
    """Against all ways in which four rounds can keep five tokens, each with its probability given the sum."""
    drafted, total, num_draws = np.array([3, 3, 2, 3]), 5, 1500
    hazard = constant_hazard(total / 4, drafted)
    ways = {}
    for kept in product(*(range(most + 1) for most in drafted)):
        if sum(kept) == total:
            ways[kept] = np.prod(
                [hazard**k * (1 - hazard if k < most else 1) for k, most in zip(kept, drafted, strict=True)]
            )
    whole = sum(ways.values())
    drawn = Counter(
        tuple(draw_accepted(total, drafted, np.random.default_rng(seed)).tolist()) for seed in range(num_draws)
    )
    assert set(drawn) <= set(ways)
    chi_square = sum((drawn[way] - num_draws * share / whole) ** 2 / (num_draws * share / whole)
                     for way, share in ways.items())  # fmt: skip
    freedom = len(ways) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.97, 1.0])
def test_a_constant_hazard_meets_its_mean(window, share):
    hazard = constant_hazard(share * window, np.array([window]))
    assert sum(hazard**depth for depth in range(1, window + 1)) == pytest.approx(share * window, abs=1e-9)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(-3, 6), st.integers(0, 20))
def test_placed_rounds_explain_all_tokens(accepted, missing, seed):
    accepted = np.array(accepted)
    explained = int(accepted.sum()) + len(accepted)
    found = place(accepted, np.full(len(accepted), 4), num_tokens=explained + missing,
                  generator=np.random.default_rng(seed))  # fmt: skip
    if missing < 0 and accepted.max() < -missing:
        assert found is None
        return
    placed, drafted = found
    assert sorted(placed.tolist()) == sorted([*accepted.tolist(), *[0] * max(missing, 0)])
    assert (drafted == 0).sum() == max(missing, 0)
    before = explained - placed[-1] - 1
    assert before < explained + min(missing, 0)


def test_every_order_is_as_likely():
    orders = Counter(
        tuple(place(np.array([0, 1, 2]), np.full(3, 4), num_tokens=6, generator=np.random.default_rng(seed))[0])
        for seed in range(1200)
    )
    assert len(orders) == 6
    assert min(orders.values()) > 140


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=6), st.integers(0, 99))
def test_paired_drafts_are_as_long_as_what_was_kept(pairs, seed):
    accepted = np.array([kept for kept, _ in pairs])
    drafts = np.random.default_rng(seed).permutation([kept + more for kept, more in pairs])
    paired = pair(accepted, drafts, np.random.default_rng(seed))
    assert (paired >= accepted).all()
    assert sorted(paired) == sorted(drafts)


def test_every_fitting_order_of_drafts_is_equally_likely():
    accepted, drafts = np.array([0, 1, 2]), np.array([3, 1, 2])
    generator = np.random.default_rng(1)
    found = Counter(tuple(pair(accepted, drafts, generator).tolist()) for _ in range(4000))
    assert set(found) == {order for order in permutations((3, 1, 2)) if all(np.array(order) >= accepted)}
    assert max(found.values()) - min(found.values()) < 4000 / len(found) / 4
