import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.laboratory.arena.cell import ArenaCell
from paceline.laboratory.arena.split import Side
from paceline.laboratory.arena.varied.change import Change
from paceline.laboratory.arena.varied.tables import constants_table, ingredients_table
from paceline.laboratory.arena.varied.worth import worth_of

CELLS = [ArenaCell(recording=name, ladder="even", load="batch-1") for name in ("pico", "mixed", "hsd")]
PICO, MIXED, HSD = CELLS

ratios = st.dictionaries(st.sampled_from(CELLS), st.floats(0.1, 3.0), min_size=1)


def test_a_change_is_measured_in_the_cells_that_were_played_with_it_and_without():
    worth = worth_of({PICO: 1.0, MIXED: 1.2}, {PICO: 0.9, MIXED: 1.5, HSD: 9.0})
    assert (worth.cells, worth.mean, worth.mean_before) == (2, pytest.approx(1.2), pytest.approx(1.1))
    assert (worth.least, worth.least_before) == (0.9, 1.0)
    assert worth.mean_moves == pytest.approx(1.2 / 1.1 - 1)
    assert (worth.lost_most, worth.lost_in) == (pytest.approx(0.1), PICO)


@given(before=ratios, after=ratios)
def test_no_cell_loses_more_than_is_said(before, after):
    worth = worth_of(before, after)
    both = before.keys() & after.keys()
    assert (worth is None) == (not both)
    for cell in both:
        assert after[cell] >= before[cell] * (1 - worth.lost_most) - 1e-12


@given(same=ratios)
def test_what_changes_nothing_moves_nothing(same):
    worth = worth_of(same, same)
    assert (worth.mean_moves, worth.lost_most) == (0.0, 0.0)


def test_the_table_of_constants_has_a_column_for_every_change_on_every_side():
    worths = {
        (Change(field="memory", factor=2.0), Side.tune): worth_of({PICO: 1.0}, {PICO: 0.99}),
        (Change(field="memory", factor=0.5), Side.report): worth_of({MIXED: 2.0}, {MIXED: 1.8}),
    }
    rows = constants_table({"memory": 64.0}, (Side.tune, Side.report), lambda one, side: worths.get((one, side)))
    heads = [head.words for head in rows.columns]
    row = dict(zip(heads, rows.rows[0], strict=True))
    assert (row["constant"], row["value"]) == ("memory", "64")
    assert row["tune, doubled (%)"] == pytest.approx(-1.0)
    assert row["report, halved (%)"] == pytest.approx(-10.0)
    assert row["tune, halved (%)"] is row["report, doubled (%)"] is None
    assert (row["a cell loses at most (%)"], row["which"]) == (pytest.approx(10.0), str(MIXED))


def test_the_table_of_ingredients_says_where_nothing_was_played():
    rows = ingredients_table(Side.tune, {"optimism": worth_of({PICO: 1.0}, {PICO: 0.9}), "lookups": None})
    assert [row[:3] for row in rows.rows] == [("optimism", 1, 1.0), ("lookups", 0, None)]
