"""Closed forms against published rows, against each other, and against brute force."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.benchmarks.shared.closed_forms import chain_speed, speedup
from paceline.policies.about import round_tokens

RATES = st.floats(0.0, 1.0)
WINDOWS = st.integers(1, 8)
SECONDS = st.floats(1e-3, 10.0)


@pytest.mark.parametrize(
    ("acceptance", "window", "ratio", "published"),
    [(0.75, 8, 0.015, 3.3), (0.80, 8, 0.015, 3.9), (0.87, 8, 0.015, 4.9), (0.2, 3, 0.0, 1.25)],
)
def test_published_rows(acceptance, window, ratio, published):
    """Leviathan et al. 2023, arXiv:2211.17192: greedy lenience, of which two rows have 0.75; a free bigram drafter."""
    assert speedup(acceptance, window, ratio) == pytest.approx(published, abs=0.05)


@given(RATES.filter(lambda rate: rate < 0.999), st.integers(0, 30))
def test_tokens_of_a_round_are_the_geometric_sum(rate, window):
    assert round_tokens(rate, window) == pytest.approx((1 - rate ** (window + 1)) / (1 - rate))


def test_at_acceptance_one_all_is_kept_and_at_zero_only_the_verifiers_own_token():
    assert round_tokens(1.0, 5) == 6.0
    assert round_tokens(0.0, 5) == 1.0
    assert chain_speed((1.0, 1.0), (3, 6), (0.1, 0.2, 1.0)).tokens == pytest.approx(9.0)  # two rounds of 4, one own
    assert chain_speed((0.0, 0.0), (3, 6), (0.1, 0.2, 1.0)).tokens == pytest.approx(1.0)


@given(RATES, WINDOWS, st.floats(0.0, 2.0))
def test_two_levels_are_the_same_in_all_forms(rate, window, ratio):
    speed = chain_speed((rate,), (window,), (ratio, 1.0))
    assert speed.seconds_per_token == pytest.approx(1.0 / speedup(rate, window, ratio))


@given(RATES, RATES, WINDOWS, SECONDS, SECONDS, SECONDS)
def test_a_middle_window_of_one_judges_every_round_below_at_once(low, high, window, draft_s, mid_s, target_s):
    speed = chain_speed((low, high), (window, 1), (draft_s, mid_s, target_s))
    chances = [low**accepted * (1 - low) for accepted in range(window)] + [low**window]
    wanted = sum(chance * round_tokens(high, accepted + 1) for accepted, chance in enumerate(chances))
    assert speed.tokens == pytest.approx(wanted)
    assert speed.seconds == pytest.approx(window * draft_s + mid_s + target_s)


def rounds_by_enumeration(rate, window, wanted):
    """(distribution of kept tokens, expected rounds), by walking every sequence of rounds."""
    chances = [rate**accepted * (1 - rate) for accepted in range(window)] + [rate**window]
    kept, expected = {}, 0.0
    for rounds in range(1, wanted + 1):
        for lengths in itertools.product(range(1, window + 2), repeat=rounds):
            if sum(lengths[:-1]) < wanted <= sum(lengths):
                chance = 1.0
                for length in lengths:
                    chance *= chances[length - 1]
                kept[sum(lengths)] = kept.get(sum(lengths), 0.0) + chance
                expected += rounds * chance
    return kept, expected


@pytest.mark.parametrize(("low", "high", "window", "middle"), [(0.7, 0.9, 2, 5), (0.3, 0.6, 3, 4), (0.95, 0.8, 1, 5)])
def test_three_levels_equal_the_enumeration_of_all_rounds(low, high, window, middle):
    kept, rounds = rounds_by_enumeration(low, window, middle)
    assert sum(kept.values()) == pytest.approx(1.0)
    speed = chain_speed((low, high), (window, middle), (0.05, 0.2, 1.0))
    assert speed.tokens == pytest.approx(sum(chance * round_tokens(high, count) for count, chance in kept.items()))
    assert speed.seconds == pytest.approx(rounds * (window * 0.05 + 0.2) + 1.0)


def test_what_is_out_of_range_is_refused_in_one_line():
    for acceptance, window, told in (
        (1.1, 3, r"acceptance must be in \[0, 1\], got 1.1"),
        (float("nan"), 3, r"acceptance must be in \[0, 1\], got nan"),
        (0.5, -1, "window must be >= 0, got -1"),
    ):
        with pytest.raises(ValueError, match=f"^{told}$"):
            round_tokens(acceptance, window)
