"""SpecRouter's search finds what enumerating every chain with every window finds, in both forms."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.benchmarks.shared.closed_forms import least_along_paths
from paceline.policies.specrouter.search import SearchFigures, best_chain, best_windows


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
    """Seconds per token, from every way that a round may go; some requests copy in place of drafting."""
    rates, forward_s, entry_s = known[:3]
    low, above, target, widest = levels[0], levels[1], levels[-1], forward_s.shape[1] - 1
    seconds = tokens = 0.0
    for kept in range(window + 1):
        chance = rates[low, above] ** kept * (1.0 - rates[low, above] if kept < window else 1.0)
        took, written = window * forward_s[low, 0] + forward_s[above, window], kept + 1
        if len(levels) == 3:
            judged_s = forward_s[target, min(written, widest)]
            took += known.drafting * judged_s + (1.0 - known.drafting) * forward_s[target, 1]
            written = sum(rates[above, target] ** count for count in range(written + 1))
        seconds += chance * took
        tokens += chance * (known.undrafted + known.drafting * (written - 1.0))
    return seconds / tokens + sum(entry_s[level] for level in levels[:-1])


COPIES = st.sampled_from([{}, {"drafting": 0.6, "undrafted": 1.8}, {"drafting": 0.1, "undrafted": 4.0}])


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 16), st.sampled_from([case, uneven]), COPIES)
def test_in_step_no_chain_of_up_to_three_members_is_better(seed, members, longest, made, copies):
    """With seconds that are no line, too: the search leaves off only where nothing better can follow."""
    known, target = made(seed, members, longest)._replace(**copies), members - 1
    found = best_chain(known, in_step=True)
    assert found.windows[1:] in ((), (1,))
    least_s = [known.seconds[target, 0] / known.undrafted]
    chains = [(*below, target) for size in (1, 2) for below in combinations(range(target), size)]
    for levels in chains:
        windows = range(1, 1 + (longest if len(levels) == 2 else max(1, longest - 1)))
        least_s.append(min(in_step(levels, window, known) for window in windows))
        assert best_windows(levels, known, in_step=True).token_s == pytest.approx(least_s[-1], rel=1e-12)
    assert found.token_s == pytest.approx(min(least_s), rel=1e-12)


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
    dear, free = (
        figures(agreement, LADDER[:, None] * np.ones((3, 17)), [0.0, entry_s, 0.0]) for entry_s in (100.0, 0.0)
    )
    assert best_chain(dear).levels == (0, 2)
    assert best_windows((0, 1, 2), dear).token_s > best_windows((0, 1, 2), free).token_s


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda known: known._replace(rates=known.rates[:2, :2]), r"rates must be \[3, 3\]"),
        (lambda known: known._replace(seconds=known.seconds[:, :1]), "seconds must have at least two"),
    ],
)
def test_wrong_input_is_told(change, told):
    with pytest.raises(ValueError, match=told):
        best_chain(change(case(0, 3, 3)))


LADDER = np.array([1.0, 10.0, 100.0])


@pytest.mark.parametrize(
    ("rates", "first_s", "levels"),
    [
        ((0.7, 0.6, 0.9), LADDER, (0, 1, 2)),
        ((0.9, 0.8, 0.8), (1.0, 10.0, 30.0), (0, 2)),  # the middle level is no better
        ((0.01, 0.01, 0.01), (0.5, 0.7, 1.0), (2,)),  # nobody agrees
    ],
)
def test_which_levels_pay(rates, first_s, levels):
    agreement = np.array([[0, *rates[:2]], [0, 0, rates[2]], [0, 0, 0]])
    assert best_chain(figures(agreement, np.array(first_s)[:, None] * np.ones((3, 17)))).levels == levels


def test_in_step_who_may_not_judge_and_who_costs_its_prompt_are_left_out():
    known = case(3, 4, 6)
    known.rates[0, 1] = known.rates[1, 3] = 1.0
    known.seconds[1] *= 0.01
    assert 1 in best_chain(known, in_step=True).levels
    assert len(best_chain(known, judges=[True, False, False, True], in_step=True).levels) <= 2
    assert 1 not in best_chain(known._replace(entry_s=np.array([0.0, 10.0, 0.0, 0.0])), in_step=True).levels
