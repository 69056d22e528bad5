"""Cells by their text, the split, which cells there are, and who plays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
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
from paceline_laboratory.arena.ladders import ladders

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
        ("pico//batch-8", "cell 'pico//batch-8': ladder must match [a-z0-9][a-z0-9.-]*, got ''"),
        ("Pico/steep/batch-8", "cell 'Pico/steep/batch-8': recording must match [a-z0-9][a-z0-9.-]*, got 'Pico'"),
    ],
)
def test_what_is_no_cell_is_told(text, says):
    with pytest.raises(ArgumentError) as told:
        ArenaCell.parse(text)
    assert str(told.value) == says


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
        ("hsd/steep/half", "`cells` must name a recording of split tune (pico, "),
    ],
)
def test_a_pattern_that_matches_nothing_is_told(pattern, says):
    with pytest.raises(ArgumentError) as told:
        asked_cells(SPLIT, Side.tune, pattern)
    assert says in str(told.value)


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
