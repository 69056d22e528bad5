"""The interaction term: both of its forms, its sign in words, and Amdahl's law where reading is all that goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_laboratory.experiments.sharing import LESS, MORE, OPEN, interaction

SECONDS = st.floats(1e-3, 1e6)
RUNS = st.integers(2, 5).flatmap(lambda seeds: st.tuples(*[st.lists(SECONDS, min_size=seeds, max_size=seeds)] * 4))


@given(RUNS)
def test_the_term_is_the_same_either_way(runs):
    """What sharing does to the speed-up of speculation, and what speculation does to that of sharing."""
    neither, speculation, sharing, both = runs
    one, other = interaction(*runs), interaction(neither, sharing, speculation, both)
    assert one.term.mean == pytest.approx(other.term.mean, rel=1e-9)
    assert one.gain.mean == other.without.mean
    assert (one.words == MORE) == (one.term.mean - one.term.half_width > 1)
    assert (one.words == LESS) == (one.term.mean + one.term.half_width < 1)


@given(st.floats(0.5, 4), st.floats(1.1, 4), st.integers(2, 5))
def test_independent_changes_have_a_term_of_one(speed_up, gain, seeds):
    each = [1.0 + seed for seed in range(seeds)]
    found = interaction(
        each, [t / speed_up for t in each], [t / gain for t in each], [t / speed_up / gain for t in each]
    )
    assert found.term.mean == pytest.approx(1.0)
    assert found.term.half_width == pytest.approx(0.0, abs=1e-9)
    assert found.words in (MORE, LESS, OPEN)


@given(st.floats(1, 100), st.floats(1, 100), st.floats(0.1, 10), st.floats(0.01, 0.99))
def test_reading_that_goes_makes_quicker_writing_worth_more_and_slower_writing_less(reading, writing, factor, left):
    """Amdahl's law: the term is above 1 if and only if speculation takes less time to write."""
    found = interaction(
        [reading + writing] * 2,
        [reading + factor * writing] * 2,
        [left * reading + writing] * 2,
        [left * reading + factor * writing] * 2,
    )
    term = found.term.mean
    assert (term > 1 + 1e-12) == (factor < 1) or abs(term - 1) < 1e-9


def test_one_seed_has_no_interval():
    with pytest.raises(ValueError, match="an interval needs at least 2 values, got 1"):
        interaction([1.0], [1.0], [1.0], [1.0])
