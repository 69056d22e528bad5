"""Which cells there are."""

import pytest
from paceline.base.errors import ArgumentError
from paceline_laboratory.arena.cells import CellsFileError, Side, all_cells, asked_cells, read_split
from paceline_laboratory.arena.ladders import ladders

SPLIT = read_split()


def test_every_recording_is_played_at_every_ladder_one_request_at_a_time():
    cells = {str(cell) for cell in all_cells(SPLIT)}
    assert {f"{name}/{at}/batch-1" for name in SPLIT.recordings(Side.all) for at in ladders()} <= cells
    assert len(cells) >= 150
    assert len(cells) == len(all_cells(SPLIT))


@pytest.mark.parametrize("side", [Side.tune, Side.report])
def test_cells_of_a_side_are_of_its_recordings_and_sides_share_none(side):
    cells = asked_cells(SPLIT, side, None)
    assert {cell.recording for cell in cells} == set(SPLIT.recordings(side))


def test_the_sides_are_all():
    sides = [asked_cells(SPLIT, side, None) for side in (Side.tune, Side.report)]
    assert (*sides[0], *sides[1]) == asked_cells(SPLIT, Side.all, None) == all_cells(SPLIT)


def test_patterns_choose_among_them():
    assert {cell.load for cell in asked_cells(SPLIT, Side.tune, "*/batch-1")} == {"batch-1"}
    assert [str(cell) for cell in asked_cells(SPLIT, Side.all, "pico/steep/*")] == ["pico/steep/batch-1"]


def test_a_cell_that_is_named_in_full_need_not_be_among_them():
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
