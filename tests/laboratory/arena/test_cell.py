"""Cells by their text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline_laboratory.arena.cells import NAME, ArenaCell

NAMES = st.from_regex(NAME, fullmatch=True)


@given(NAMES, NAMES, NAMES)
def test_a_cell_comes_back_from_its_text(recording, ladder, load):
    cell = ArenaCell(recording=recording, ladder=ladder, load=load)
    assert ArenaCell.parse(str(cell)) == cell


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pico/steep", "a cell must be RECORDING/LADDER/LOAD, as pico/steep/batch-8, got 'pico/steep'"),
        (
            "pico/steep/batch-8/0",
            "a cell must be RECORDING/LADDER/LOAD, as pico/steep/batch-8, got 'pico/steep/batch-8/0'",
        ),
        ("pico//batch-8", "cell 'pico//batch-8': ladder must match [a-z0-9][a-z0-9.-]*, got ''"),
        ("Pico/steep/batch-8", "cell 'Pico/steep/batch-8': recording must match [a-z0-9][a-z0-9.-]*, got 'Pico'"),
    ],
)
def test_what_is_no_cell_is_told(text, says):
    with pytest.raises(ArgumentError) as told:
        ArenaCell.parse(text)
    assert str(told.value) == says
