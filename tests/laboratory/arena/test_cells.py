"""Cells, the split and the field; ladders, and the family of static chains with the search for its best."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.base.files import shipped
from paceline.decoding.pool import Member, Pool
from paceline.policies.by_name import PolicySpec, make_policy
from paceline.policies.chain_text import ChainSpec, parse_chain
from paceline.reports.summary import summarise_run
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.files import CostLine, FileCost
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.on_disk import read_trace
from paceline_laboratory.arena import statics
from paceline_laboratory.arena.cells import (
    NAME,
    ArenaCell,
    CellsFileError,
    Side,
    SplitFileError,
    all_cells,
    asked_cells,
    asked_field,
    default_field,
    read_split,
)
from paceline_laboratory.arena.ladders import ladder, ladders, roles_of
from paceline_laboratory.arena.play import BEST_STATIC, RecordingStage, play
from paceline_laboratory.arena.statics import MOST, CellStatics, ChainFamily, Search, best_static, seconds_of, seek

NAMES = st.from_regex(NAME, fullmatch=True)
SPLIT = read_split()


@given(NAMES, NAMES, NAMES)
def test_a_cell_comes_back_from_its_text(recording, ladder, load):
    cell = ArenaCell(recording=recording, ladder=ladder, load=load)
    assert ArenaCell.parse(str(cell)) == cell


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pico/steep", "a cell must be RECORDING/LADDER/LOAD, as pico/steep/batch-8, got 'pico/steep'"),
        ("a/b/c/0", "a cell must be RECORDING/LADDER/LOAD, as pico/steep/batch-8, got 'a/b/c/0'"),
    ],
)
def test_what_is_no_cell_is_told(text, says):
    with pytest.raises(ArgumentError, match=f"^{re.escape(says)}$"):
        ArenaCell.parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "must be readable"),
        ('tune = ["pico"]', "report must be given"),
        ('tune = ["pico"]\nreport = []', "report must name one recording at least"),
        ('tune = ["pico"]\nreport = ["pico"]', "report must hold what no side holds before, which 'pico' is not"),
        ('report = ["a/b"]', "report must hold names that match [a-z0-9][a-z0-9.-]*, which 'a/b' does not"),
        ('report = ["a"]\nreprot = ["b"]', "reprot is not a known key"),
        ("report = [", "the split must be TOML in UTF-8"),
    ],
)
def test_what_is_no_split_is_told_in_one_line(tmp_path, text, says):
    file = tmp_path / "mine.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SplitFileError) as told:
        read_split(file)
    assert str(told.value).startswith(f"{file}: ")
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_the_sides_share_nothing_and_are_all():
    cells = {side: asked_cells(SPLIT, side, None) for side in Side}
    for side in (Side.tune, Side.report):
        assert {cell.recording for cell in cells[side]} == set(SPLIT.recordings(side))
        assert {SPLIT.side_of(name) for name in SPLIT.recordings(side)} == {side}
    assert not set(SPLIT.tune) & set(SPLIT.report)
    assert (*cells[Side.tune], *cells[Side.report]) == cells[Side.all] == all_cells(SPLIT)
    named = set(map(str, cells[Side.all]))
    assert {f"{name}/{at}/batch-1" for name in SPLIT.recordings(Side.all) for at in ladders()} <= named
    assert len(cells[Side.all]) == len(named) >= 150


def test_patterns_choose_among_them_and_a_cell_that_is_named_in_full_need_not_be_one():
    assert {cell.load for cell in asked_cells(SPLIT, Side.tune, "*/batch-1")} == {"batch-1"}
    assert [str(cell) for cell in asked_cells(SPLIT, Side.all, "pico/steep/*")] == ["pico/steep/batch-1"]
    assert "pico/far/ninety" not in map(str, all_cells(SPLIT))
    assert [str(cell) for cell in asked_cells(SPLIT, Side.tune, "pico/far/ninety")] == ["pico/far/ninety"]


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("pico/*/batch-2", "`cells` must match one of the"),
        ("pico", "`cells` must match one of the"),
        ("pico/steep/batch-2", "the load of a cell must be one of batch-1"),
        ("pico/steeper/batch-1", "the ladder of a cell must be one of flat"),
        ("pico//batch-1", "the ladder of a cell must be one of flat"),
        ("hsd/steep/half", "`cells` must name a recording of split tune (pico, "),
    ],
)
def test_a_pattern_that_matches_nothing_is_told(pattern, says):
    with pytest.raises(ArgumentError, match=re.escape(says)):
        asked_cells(SPLIT, Side.tune, pattern)


def test_a_block_that_names_nothing_is_told(tmp_path):
    file = tmp_path / "cells.toml"
    file.write_text('[[blocks]]\nrecordings = ["*"]\nladders = ["steeper"]\nloads = ["batch-1"]\n')
    with pytest.raises(CellsFileError, match=r"blocks\[0\]\.ladders must name flat, .*, got 'steeper'"):
        all_cells(SPLIT, file)


def test_the_default_field_sees_nothing_ahead_and_policies_take_its_place_or_join_it():
    field = default_field()
    assert {"plain", "two-level", "specrouter", "cas-spec", "hedgespec", "banditspec"} <= set(field)
    assert not {"oracle-chain", "oracle-window", "chain", "per-tag", "guarded", "tree", "tree-dynamic"} & set(field)
    assert [spec.label for spec in asked_field(None, None)] == list(field)
    assert [spec.label for spec in asked_field(["specrouter"], ["ngram"])] == ["specrouter", "ngram"]
    assert [spec.label for spec in asked_field(None, ["two-level,most=8"])] == [*field, "two-level,most=8"]
    with pytest.raises(ArgumentError, match="`policies` must differ, got plain twice"):
        asked_field(None, ["plain"])


@pytest.mark.parametrize(
    ("members", "roles"),
    [
        (["target"], ["target"]),
        (["eagle", "target"], ["draft", "target"]),
        (["sps", "eagle", "big"], ["draft", "mid", "target"]),
        (["a", "b", "c", "d"], ["draft", "mid", "slim", "target"]),
        (["draft", "mid", "slim", "target"], ["draft", "mid", "slim", "target"]),
        (["draft-code", "draft-math", "other", "target"], ["draft", "draft", "mid", "target"]),
        (["draft", "slim", "target"], ["draft", "slim", "target"]),
        (["a", "b", "c", "d", "e", "f", "z"], ["draft", "draft", "mid", "mid", "slim", "slim", "target"]),
    ],
)
def test_roles_go_by_name_then_by_place(members, roles):
    assert [str(roles_of(members)[name]) for name in members] == roles


@pytest.mark.parametrize("name", ladders())
def test_every_ladder_prices_every_member_and_more_tokens_are_never_cheaper(name, trace):
    cost = ladder(name)(trace)
    for model in trace.about.models:
        seconds = [
            cost.forward_s(model, num_rows=rows, new_tokens=rows * wide, context_tokens=rows * 100)
            for rows in (1, 8, 32)
            for wide in (1, 8, 64)
        ]
        assert min(seconds) > 0
        assert cost.forward_s(model, num_rows=32, new_tokens=2048, context_tokens=3200) >= seconds[0]


@pytest.mark.parametrize("name", [name for name in ladders() if name != "cpu"])
def test_larger_roles_cost_no_less(name, trace):
    cost = ladder(name)(trace)
    alone = [cost.forward_s(model, num_rows=1, new_tokens=1, context_tokens=0) for model in trace.about.models]
    assert alone == sorted(alone)
    assert alone[-1] > alone[0]


def test_dear_lookups_take_13_percent_of_the_seconds_of_the_chain_that_says_so():
    recording = read_trace(shipped("recordings", "pico.trace"))
    tables, cost = TrieTables(recording), ladder("near")(recording)
    name = "ngram:6/draft:4/target"
    log = simulate(Scenario(tables=tables, cost=cost), make_policy(name, tables.pool), name)
    assert summarise_run(log).levels[0].share_of_seconds == pytest.approx(0.13, abs=0.01)


def test_a_ladder_that_is_none_is_told():
    with pytest.raises(ArgumentError, match=r"the ladder of a cell must be one of flat, even, .*, got 'steeper'"):
        ladder("steeper")


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
    assert len(asked) == len(set(asked)) == len(search.chains)
    assert search.chains[0] == found
    seconds_of_each = [search.tried[chain] for chain in search.chains]
    assert seconds_of_each == sorted(seconds_of_each)
    if start.members == goal.members:
        assert found == goal
    unlike = search.unlike(4)
    assert len({(chain.members, chain.windows[:1]) for chain in unlike}) == len(unlike) <= 4
    assert unlike[0] == found
    fastest = search.of_each_members()
    assert len({chain.members for chain in fastest}) == len(fastest)
    assert fastest[0] == found


def prices(draft, mid, slim, target):
    figures = {"draft": draft, "mid": mid, "slim": slim, "target": target}
    return FileCost("prices", {name: CostLine(intercept_s=s, per_new_token_s=s / 128) for name, s in figures.items()})


@pytest.fixture(scope="module")
def tables():
    trace = read_trace(shipped("recordings", "pico-coupled.trace"))
    return TrieTables(replace(trace, requests=trace.requests[:6]))


@pytest.mark.parametrize("prices_s", [(1, 10, 50, 100), pytest.param((1, 1, 1, 4), marks=pytest.mark.slow)])
def test_the_best_is_within_a_hundredth_of_what_a_grid_holds(tables, prices_s, monkeypatch):
    scenario = Scenario(tables=tables, cost=prices(*prices_s))
    found = best_static(scenario)
    best_s = found.tried[found.chains[0]]
    assert best_s == seconds_of(scenario, found.chains[0])
    family = ChainFamily(tables.pool)
    grid = [
        family.plain,
        *family.two_levels(tuple(range(1, MOST + 1))),
        *family.three_levels((1, 2, 4), (2, 4, 7, 11), lookups=False),
        *family.three_levels((3, 6), (2, 6, 10), lookups=True),
    ]
    assert best_s <= 1.01 * min(seconds_of(scenario, chain) for chain in grid)
    monkeypatch.setattr(statics, "SAMPLE_TOKENS", 100)
    tried = [0, 0]
    seek(family, sample=counted_in(tried, 0, scenario), whole=counted_in(tried, 1, scenario))
    assert tried[0] > 5 * tried[1]  # most are run on a sample


def counted_in(tried, place, scenario):
    def seconds(chain):
        tried[place] += 1
        return seconds_of(scenario, chain)

    return seconds


@pytest.fixture(scope="module")
def stage():
    trace = read_trace(shipped("recordings", "pico-coupled.trace"))
    return RecordingStage(replace(trace, requests=trace.requests[:6]))


@pytest.mark.parametrize(
    "load", ["ninety", *(pytest.param(load, marks=pytest.mark.slow) for load in ("batch-1", "batch-8"))]
)
def test_no_chain_of_two_levels_is_faster_at_any_load_or_seed(stage, load):
    cell = ArenaCell(recording="pico-coupled", ladder="steep", load=load)
    found = CellStatics(stage)
    for seed in (0, 1):
        best = found.best(cell, seed)
        assert (best.cell, best.policy, best.seed) == (cell, BEST_STATIC, seed)
        again = play(stage, cell, PolicySpec.parse(best.chain), seed)
        assert replace(again, policy=BEST_STATIC, chain=best.chain) == best
        for text in ("plain", "draft:4/target", "mid:3/target"):
            assert play(stage, cell, PolicySpec.parse(text), seed).tokens_per_s <= best.tokens_per_s * (1 + 1e-12)
