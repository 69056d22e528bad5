"""The filter form finds what a search without bounds finds, which looks at every level below in full."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies.about import gathered, kept_of
from paceline.policies.specrouter.search import SearchFigures, best_chain


def wide(seconds, size):
    slope = max(0.0, seconds[-1] - seconds[-2])
    beyond = seconds[-1] + slope * np.arange(1, size)
    return np.concatenate([seconds, beyond])[:size]


def in_full(known, judges):
    """(levels, windows, seconds per token of every level) by looking at all levels below with all windows."""
    size, longest = known.seconds.shape[0], known.seconds.shape[1] - 1
    kept = [np.array([0.0, 1.0])] * size
    round_s = (known.seconds[:, 0] + known.entry_s).tolist()
    tau, through = list(round_s), {}
    for level in filter(lambda one: judges[one], range(1, size)):
        found = []
        for lower in range(level):
            judged, rounds = gathered(kept[lower], longest)
            forward_s = wide(known.seconds[level], judged.shape[1])
            tokens = np.cumsum(known.rates[lower, level] ** np.arange(judged.shape[1]))
            token_s = (rounds * round_s[lower] + judged @ forward_s) / (judged @ tokens)
            found += [(each, lower, window) for window, each in enumerate(token_s, start=1)]
        token_s, lower, window = min(found)
        if token_s + known.entry_s[level] < tau[level]:
            judged, rounds = (table[window - 1] for table in gathered(kept[lower], longest))
            kept[level] = kept_of(judged, known.rates[lower, level])
            tokens = kept[level] @ np.arange(len(kept[level]))
            tau[level], through[level] = token_s + known.entry_s[level], (lower, window)
            round_s[level] = tau[level] * tokens
    levels, windows = [size - 1], []
    while levels[0] in through:
        lower, window = through[levels[0]]
        levels.insert(0, lower)
        windows.insert(0, window)
    return tuple(levels), tuple(windows), [tau[level] for level in levels]


@st.composite
def pools(draw):
    """Members of rising seconds, from steep to nearly flat in the tokens of a forward, some of which only draft."""
    rng = np.random.default_rng(draw(st.integers(0, 10**9)))
    size, longest = draw(st.integers(2, 9)), draw(st.integers(1, 16))
    least = draw(st.sampled_from([0.05, 0.3, 0.8]))
    rates = np.triu(rng.uniform(least, 1.0, (size, size)), 1)
    first_s = np.geomspace(1.0, draw(st.sampled_from([2.0, 30.0, 1_000.0])), size)
    grows = np.cumsum(rng.exponential(draw(st.sampled_from([0.001, 0.05, 0.5])), (size, longest + 1)), axis=1)
    entry_s = rng.uniform(0.0, draw(st.sampled_from([0.0, 0.1])), size)
    judges = [True, *(bool(one) for one in rng.integers(0, 4, size - 2)), True]
    return SearchFigures(rates, first_s[:, None] * (1.0 + grows), entry_s), judges


@given(pools())
def test_bounds_take_nothing_from_the_search(pool):
    known, judges = pool
    found = best_chain(known, form="filter", judges=judges)
    levels, windows, level_s = in_full(known, judges)
    assert (found.levels, found.windows) == (levels, windows)
    np.testing.assert_allclose(found.level_s, level_s, rtol=1e-9)


def test_four_levels_are_among_what_is_found():
    rng = np.random.default_rng(4)
    deep = 0
    for _ in range(200):
        rates = np.triu(rng.uniform(0.8, 0.99, (6, 6)), 1)
        known = SearchFigures(rates, np.geomspace(1.0, 1e5, 6)[:, None] * (1.0 + 0.01 * np.arange(9)), np.zeros(6))
        deep += len(best_chain(known, form="filter").levels) >= 4
    assert deep > 20
