"""The family of static chains, the search for its best, and runs counted once that have seconds at any cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.files import shipped
from paceline.decoding.pool import Member, Pool
from paceline.policies.chains import ChainSpec, parse_chain
from paceline.policies.spec import PolicySpec, make_policy
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import DraftTerms
from paceline.sim.cost.files import CostGrid, CostLine, DrafterFigures, FileCost
from paceline.sim.cost.make import make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.store import read_trace
from paceline.traces.meta import CostTable
from paceline_laboratory.arena import statics as at_batch_one
from paceline_laboratory.arena.cells import ArenaCell
from paceline_laboratory.arena.ladders import ladders
from paceline_laboratory.arena.play import RecordingStage, play
from paceline_laboratory.arena.statics import (
    MOST,
    CellStatics,
    ChainFamily,
    ChainSearch,
    ForwardKinds,
    PlayedChains,
    Search,
    UnitCost,
)
from paceline_laboratory.arena.store import BEST_STATIC

from ...sim.fixed.recorded import contexts, logs, texts

SECONDS = st.floats(1e-6, 1e3)
LINES = st.builds(CostLine, intercept_s=SECONDS, per_new_token_s=SECONDS, per_kv_token_s=SECONDS)
FORWARDS = st.one_of(
    LINES,
    st.builds(lambda one, other: CostTable(new_tokens=(1, 7), seconds=(one, other)), SECONDS, SECONDS),
    st.builds(
        lambda a, b, c: CostGrid(new_tokens=(1, 5), context_tokens=(0, 20), seconds=((a, b), (b, c))), *[SECONDS] * 3
    ),
)
DRAFTERS = st.one_of(
    FORWARDS,
    st.builds(
        lambda terms, known: DrafterFigures(terms=terms, forwards=known),
        st.builds(DraftTerms, SECONDS, st.none() | SECONDS, st.none()),
        FORWARDS,
    ),
)


@st.composite
def costs(draw, pool):
    figures = {member.name: draw(DRAFTERS) for member in pool.members[:-1]}
    cost = FileCost("drawn", figures | {pool.target: draw(FORWARDS)}, extrapolate=True)
    cost.lookup_s = draw(SECONDS)
    return cost


def replayed(tables, cost, text, batch=1):
    return simulate(Scenario(tables=tables, cost=cost, batch=batch), make_policy(text, tables.pool), text)


@given(contexts() | logs(), st.data())
def test_counted_forwards_cost_what_the_simulated_run_takes(tables, data):
    kinds = ForwardKinds(tables.pool)
    text = data.draw(texts(tables.pool, stops=False))
    run = kinds.count(replayed(tables, UnitCost(), text))
    for _ in range(2):
        cost = data.draw(costs(tables.pool))
        log = replayed(tables, cost, text)
        assert run.tokens == log.requests["emitted_tokens"].sum()
        assert kinds.seconds(run, cost) == pytest.approx(log.ops["duration_s"].sum(), rel=1e-9)


@pytest.mark.parametrize("text", ["plain", "draft:16/target", "ngram:6/draft:3/mid:7/target", "slim:2/target"])
def test_the_shipped_recording_at_the_ladders(text):
    trace = read_trace(shipped("recordings", "pico.trace"))
    tables = TrieTables(trace)
    kinds = ForwardKinds(tables.pool)
    other = kinds.count(replayed(tables, UnitCost(), "mid:3/target"))
    run = kinds.count(replayed(tables, UnitCost(), text))
    for cost in (make_cost("h100", trace), *(one.cost(trace) for one in ladders().values())):
        kinds.seconds(other, cost)
        end_s = replayed(tables, cost, text).requests["finished_at_s"].max()
        assert kinds.seconds(run, cost) == pytest.approx(end_s, rel=1e-9)


def test_a_batch_cannot_be_counted_and_a_cost_of_whole_operations_is_refused():
    class WithOperations(UnitCost):
        knows_operations = True

    tables = TrieTables(read_trace(shipped("recordings", "pico.trace")))
    kinds = ForwardKinds(tables.pool)
    with pytest.raises(ValueError, match="one request at a time"):
        kinds.count(replayed(tables, UnitCost(), "plain", batch=2))
    run = kinds.count(replayed(tables, UnitCost(), "plain"))
    assert kinds.seconds(run, UnitCost()) == run.repeats.sum() == np.sum(run.tokens)
    with pytest.raises(ValueError, match="more of operations"):
        kinds.seconds(run, WithOperations())


POOL = Pool(
    (
        Member(name="ngram", model_free=True, drafts_only=True),
        Member(name="draft"),
        Member(name="side", drafts_only=True),
        Member(name="mid"),
        Member(name="target"),
    )
)
FAMILY = ChainFamily(POOL)


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
    return TrieTables(replace(trace, requests=trace.requests[:6]))


@pytest.mark.parametrize("seconds", [(1, 1, 1, 4), (1, 10, 50, 100)])
def test_the_best_is_within_a_hundredth_of_what_a_grid_holds(tables, seconds):
    cost = prices(*seconds)
    ranked = ChainSearch(tables).best(cost)
    played = PlayedChains(tables)
    assert ranked.seconds[0] == pytest.approx(played.seconds(cost, ranked.best), rel=1e-12)
    family = ChainFamily(tables.pool)
    grid = [
        family.plain,
        *family.two_levels(tuple(range(1, MOST + 1))),
        *family.three_levels((1, 2, 4), (2, 4, 7, 11), lookups=False),
        *family.three_levels((3, 6), (2, 6, 10), lookups=True),
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


@pytest.fixture(scope="module")
def stage():
    trace = read_trace(shipped("recordings", "pico-coupled.trace"))
    return RecordingStage(replace(trace, requests=trace.requests[:6]))


@pytest.mark.parametrize("load", ["batch-1", "batch-8", "ninety"])
def test_no_chain_of_two_levels_is_faster_at_any_load_or_seed(stage, load):
    cell = ArenaCell(recording="pico-coupled", ladder="steep", load=load)
    statics = CellStatics(stage)
    for seed in (0, 1):
        best = statics.best(cell, seed)
        assert (best.cell, best.policy, best.seed) == (cell, BEST_STATIC, seed)
        again = play(stage, cell, PolicySpec.parse(best.chain), seed)
        assert replace(again, policy=BEST_STATIC, chain=best.chain) == best
        for text in ("plain", "draft:4/target", "mid:3/target"):
            assert play(stage, cell, PolicySpec.parse(text), seed).tokens_per_s <= best.tokens_per_s * (1 + 1e-12)
