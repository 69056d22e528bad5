"""The search finds what enumerating every chain with every window finds, and says what `speed` says of it."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.benchmarks.shared.closed_forms import chain_speed, least_along_paths
from paceline.policies.specrouter.search import SearchFigures, best_chain, best_windows

from ..closed_forms import nested_seconds

FILTER_BOUND = 1.1  # of the enumerated best


def case(seed, members, longest, *, flat=False):
    rng = np.random.default_rng(seed)
    agreement = np.triu(rng.uniform(0.05, 0.99, (members, members)), 1)
    first = np.sort(rng.uniform(0.01, 1.0, members))
    slope = 0.0 if flat else rng.uniform(0.0, 0.1, members)[:, None]
    return figures(agreement, first[:, None] * (1.0 + slope * np.arange(longest + 1)))


def uneven(seed, members, longest):
    """Seconds that neither rise with tokens nor with members, rates of none and of all tokens among them."""
    rng = np.random.default_rng(seed)
    agreement = rng.uniform(-0.2, 1.2, (members, members)).clip(0.0, 1.0)
    return figures(agreement, rng.uniform(0.01, 1.0, (members, longest + 1)), rng.uniform(0.0, 0.1, members))


def figures(rates, seconds, entry_s=None):
    rates, seconds = np.asarray(rates, dtype=float), np.asarray(seconds)
    return SearchFigures(rates, seconds, np.zeros(len(seconds)) if entry_s is None else np.array(entry_s))


def chains(members, longest):
    for size in range(members):
        for below in combinations(range(members - 1), size):
            levels = (*below, members - 1)
            for windows in product(range(1, longest + 1), repeat=size):
                yield levels, windows


def nested(levels, windows, known):
    agreement, forward_s, entry_s = known[:3]
    tau = forward_s[levels[0], 0] + entry_s[levels[0]]
    for low, high, window in zip(levels, levels[1:], windows, strict=False):
        tokens = sum(agreement[low, high] ** k for k in range(window + 1))
        tau = (window * tau + forward_s[high, window]) / tokens + entry_s[high]
    return tau


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5), st.sampled_from([case, uneven]))
def test_dynamic_programming_is_enumeration(seed, members, longest, made):
    known = made(seed, members, longest)
    found = best_chain(known)
    least = min(nested(*chain, known) for chain in chains(members, longest))
    assert found.token_s == pytest.approx(least, rel=1e-12)
    assert nested(found.levels, found.windows, known) == pytest.approx(least, rel=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 16), st.sampled_from([case, uneven]))
def test_one_pass_from_small_to_large_finds_the_generalised_shortest_path(seed, members, longest, made):
    known = made(seed, members, longest)._replace(entry_s=np.zeros(members))
    least_s = least_along_paths(known.rates, known.seconds)[-1]
    assert best_chain(known).token_s == pytest.approx(least_s, rel=1e-12)


def in_step(levels, window, known):
    """Seconds per token, from every way that a round of three may go."""
    (low, mid, target), (agreement, forward_s, entry_s) = levels, known[:3]
    kept, widest = agreement[low, mid], forward_s.shape[1] - 1
    seconds = tokens = 0.0
    for count in range(window + 1):
        chance = kept**count * (1.0 - kept if count < window else 1.0)
        seconds += chance * forward_s[target, min(count + 1, widest)]
        tokens += chance * sum(agreement[mid, target] ** handed for handed in range(count + 2))
    return (window * forward_s[low, 0] + forward_s[mid, window] + seconds) / tokens + entry_s[low] + entry_s[mid]


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 16), st.sampled_from([case, uneven]))
def test_in_step_no_chain_of_up_to_three_members_is_better(seed, members, longest, made):
    """With seconds that are no line, too: the search leaves off only where nothing better can follow."""
    known = made(seed, members, longest)
    target = members - 1
    found = best_chain(known, form="in step")
    least_s = [known.seconds[target, 0]]
    for low in range(target):
        free = known._replace(entry_s=np.zeros(members))
        least_s += [nested((low, target), (window,), free) + known.entry_s[low] for window in range(1, longest + 1)]
        for mid in range(low + 1, target):
            windows = range(1, max(1, longest - 1) + 1)
            least_s += [in_step((low, mid, target), window, known) for window in windows]
    assert found.token_s == pytest.approx(min(least_s), rel=1e-12)


def test_the_nested_form_is_the_one_of_speed():
    agreement = case(3, 4, 5, flat=True).rates
    agreement[0, 1:] = 0.9, 0.5, 0.3
    agreement[1, 2:] = 0.9, 0.5
    agreement[2, 3] = 0.9
    forward_s = np.array([1.0, 10.0, 100.0, 1000.0])[:, None] * np.ones((4, 6))
    found = best_chain(figures(agreement, forward_s))
    assert len(found.levels) > 2
    seconds = [forward_s[level, 0] for level in found.levels]
    rates = [agreement[low, high] for low, high in pairwise(found.levels)]
    assert found.token_s == pytest.approx(nested_seconds(rates, found.windows, seconds), rel=1e-12)


def filtered(levels, windows, known):
    agreement, forward_s = known[:2]
    if len(levels) == 1:
        return forward_s[levels[0], 0]
    rates = [agreement[low, high] for low, high in pairwise(levels)]
    return chain_speed(rates, windows, [forward_s[level, 0] for level in levels]).seconds_per_token


@given(st.integers(0, 10**6))
def test_the_filter_form_says_of_what_it_finds_what_speed_says(seed):
    known = case(seed, 3, 4, flat=True)
    found = best_chain(known, form="filter")
    assert found.token_s == pytest.approx(filtered(found.levels, found.windows, known), rel=1e-9)


def test_the_filter_form_is_close_to_enumeration():
    ratios = []
    for seed in range(200):
        known = case(seed, 3, 4, flat=True)
        least = min(filtered(*chain, known) for chain in chains(3, 4))
        ratios.append(best_chain(known, form="filter").token_s / least)
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) < FILTER_BOUND
    assert np.mean(np.array(ratios) < 1 + 1e-9) > 0.95


@given(st.integers(0, 10**6))
def test_both_forms_are_one_for_two_levels(seed):
    known = case(seed, 2, 6)
    one, other = (best_chain(known, form=form) for form in ("nested", "filter"))
    assert one.windows == other.windows
    assert one.token_s == pytest.approx(other.token_s, rel=1e-12)


@given(st.integers(0, 10**6))
def test_windows_of_given_members(seed):
    known = case(seed, 4, 4)
    found = best_windows((0, 2, 3), known)
    least = min(nested((0, 2, 3), windows, known) for windows in product(range(1, 5), repeat=2))
    assert found.token_s == pytest.approx(least, rel=1e-12)


def test_who_cannot_judge_only_drafts():
    found = [best_chain(case(seed, 4, 6)).levels for seed in range(50)]
    assert any(1 in levels[1:] for levels in found)
    judges = [True, False, True, True]
    found = [best_chain(case(seed, 4, 6), judges=judges).levels for seed in range(50)]
    assert not any(1 in levels[1:] for levels in found)
    assert any(levels[0] == 1 for levels in found)


def test_a_member_that_costs_too_much_to_enter_stays_out():
    agreement = np.array([[0, 0.7, 0.6], [0, 0, 0.9], [0, 0, 0]])
    forward_s = np.array([1.0, 10.0, 100.0])[:, None] * np.ones((3, 17))
    known = figures(agreement, forward_s, [0.0, 100.0, 0.0])
    for form in ("nested", "filter"):
        assert best_chain(known, form=form).levels == (0, 2)
    found = best_windows((0, 1, 2), known)
    free = best_windows((0, 1, 2), figures(agreement, forward_s))
    assert found.token_s > free.token_s


@pytest.mark.parametrize("form", ["nested", "filter"])
def test_costs_of_1_to_10_to_100_take_the_middle_level(form):
    agreement = np.array([[0, 0.7, 0.6], [0, 0, 0.9], [0, 0, 0]])
    forward_s = np.array([1.0, 10.0, 100.0])[:, None] * np.ones((3, 17))
    assert best_chain(figures(agreement, forward_s), form=form).levels == (0, 1, 2)


@pytest.mark.parametrize("form", ["nested", "filter"])
def test_a_middle_level_that_is_no_better_is_dropped(form):
    agreement = np.array([[0, 0.9, 0.8], [0, 0, 0.8], [0, 0, 0]])
    forward_s = np.array([1.0, 10.0, 30.0])[:, None] * np.ones((3, 17))
    assert best_chain(figures(agreement, forward_s), form=form).levels == (0, 2)


def test_nothing_pays_where_nobody_agrees():
    agreement = np.full((3, 3), 0.01)
    found = best_chain(figures(agreement, np.array([0.5, 0.7, 1.0])[:, None] * np.ones((3, 5))))
    assert (found.levels, found.windows) == ((2,), ())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda known: (known._replace(rates=known.rates[:2, :2]), "nested"), r"rates must be \[3, 3\]"),
        (lambda known: (known._replace(seconds=known.seconds[:, :1]), "nested"), "seconds must have at least two"),
        (lambda known: (known, "other"), "form must be nested, filter or in step, got 'other'"),
    ],
)
def test_wrong_input_is_told(change, told):
    known, form = change(case(0, 3, 3))
    with pytest.raises(ValueError, match=told):
        best_chain(known, form=form)
