"""The family of static chains, and the search for its best."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.files import shipped
from paceline.decoding.pool import Member, Pool
from paceline.policies.chains import ChainSpec, parse_chain
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.files import CostLine, FileCost
from paceline.traces.contexts.recording import TrieRecording
from paceline.traces.contexts.store import read_trace
from paceline_laboratory.arena import statics as at_batch_one
from paceline_laboratory.arena.statics import MOST, ChainSearch, Family, PlayedChains, Search

POOL = Pool(
    (
        Member(name="ngram", model_free=True, drafts_only=True),
        Member(name="draft"),
        Member(name="side", drafts_only=True),
        Member(name="mid"),
        Member(name="target"),
    )
)
FAMILY = Family(POOL)


def windows_of(members):
    return st.tuples(*[st.integers(1, MOST)] * (len(members) - 1))


@st.composite
def chains(draw):
    below = draw(st.sampled_from([("ngram",), ("draft",), ("side",), ("draft", "mid"), ("ngram", "draft", "mid")]))
    members = (*below, "target")
    return ChainSpec(members=members, windows=draw(windows_of(members)))


def test_the_search_begins_with_chains_of_the_pool_each_once():
    begin = list(FAMILY.coarse())
    assert len(begin) == len(set(begin))
    assert FAMILY.plain in begin
    assert {chain.members for chain in FAMILY.two_levels()} == {
        (name, "target") for name in ("ngram", "draft", "side", "mid")
    }
    for chain in begin:
        assert parse_chain(str(chain), POOL) == chain


@given(chains())
def test_neighbours_are_chains_of_the_pool(chain):
    for near in (*FAMILY.windows_near(chain), *FAMILY.windows_next(chain), *FAMILY.members_near(chain)):
        assert parse_chain(str(near), POOL) == near
        assert all(1 <= window <= MOST for window in near.windows)
    assert all(near.members == chain.members for near in FAMILY.windows_near(chain))
    assert chain in [back for near in FAMILY.windows_next(chain) for back in FAMILY.windows_next(near)]


@given(chains(), chains())
def test_ascent_ends_where_no_neighbour_is_faster_and_asks_of_each_once(start, goal):
    asked = []

    def seconds(chain):
        asked.append(chain)
        if chain.members != goal.members:
            return 1000.0 + len(set(chain.members) ^ set(goal.members))
        return 1.0 + sum(abs(one - other) for one, other in zip(chain.windows, goal.windows, strict=True))

    search = Search(seconds)
    found = search.ascend(start, (FAMILY.windows_near, FAMILY.members_near))
    ranked = search.ranked()
    assert len(asked) == len(set(asked)) == len(ranked.chains)
    assert ranked.best == found
    assert list(ranked.seconds) == sorted(ranked.seconds)
    if start.members == goal.members:
        assert found == goal
    unlike = ranked.unlike(4)
    assert len({(chain.members, chain.windows[:1]) for chain in unlike}) == len(unlike) <= 4
    assert unlike[0] == found
    fastest = ranked.of_each_members()
    assert len({chain.members for chain in fastest}) == len(fastest)
    assert fastest[0] == found


def prices(draft, mid, slim, target):
    figures = {"draft": draft, "mid": mid, "slim": slim, "target": target}
    return FileCost("prices", {name: CostLine(intercept_s=s, per_new_token_s=s / 128) for name, s in figures.items()})


@pytest.fixture(scope="module")
def tables():
    trace = read_trace(shipped("recordings", "pico-coupled.trace"))
    return TrieTables(TrieRecording(meta=trace.meta, requests=trace.requests[:12]))


@pytest.mark.parametrize("seconds", [(1, 1, 1, 4), (1, 10, 50, 100)])
def test_the_best_is_within_a_hundredth_of_what_a_grid_holds(tables, seconds):
    cost = prices(*seconds)
    ranked = ChainSearch(tables).best(cost)
    played = PlayedChains(tables)
    assert ranked.seconds[0] == pytest.approx(played.seconds(cost, ranked.best), rel=1e-12)
    family = Family(tables.pool)
    grid = [
        family.plain,
        *family.two_levels(tuple(range(1, MOST + 1))),
        *family.three_levels((1, 2, 3, 4, 6), (2, 3, 5, 7, 9, 11), lookups=False),
        *family.three_levels((3, 6), (2, 4, 6, 10), lookups=True),
    ]
    assert ranked.seconds[0] <= 1.01 * min(played.seconds(cost, chain) for chain in grid)


def test_most_chains_are_played_on_a_sample_and_none_again_at_other_prices(tables, monkeypatch):
    monkeypatch.setattr(at_batch_one, "SAMPLE_TOKENS", 100)
    search = ChainSearch(tables)
    first = search.best(prices(1, 3, 6, 10))
    played = len(search.whole), len(search.sample)
    assert played[1] > 5 * played[0]
    assert search.best(prices(1, 3, 6, 10)) == first
    assert (len(search.whole), len(search.sample)) == played
