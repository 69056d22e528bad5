"""Tables whose columns are declared where their values are."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_laboratory.findings import markdown_table, table, table_cell

VALUES = st.none() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | st.text("ab|*_\\ ", max_size=8)


@given(st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=5))
def test_every_form_shows_every_value_in_its_column(values):
    width = min(map(len, values))
    rows = table("made", [[table_cell(f"c{place}", row[place], "x", 2) for place in range(width)] for row in values])
    assert [head.words for head in rows.columns] == [f"c{place} (x)" for place in range(width)]
    assert list(rows.rows) == [tuple(row[:width]) for row in values]
    shown = rows.grid()
    for cells, texts in zip(rows.rows, shown.rows, strict=True):
        assert texts == tuple(head.text(value) for head, value in zip(rows.columns, cells, strict=True))
    lines = markdown_table(shown).splitlines()
    assert len(lines) == len(values) + 4
    assert all(len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == width + 1 for line in lines[2:])


def test_a_column_is_read_by_its_name():
    rows = table("made", [[table_cell("who", name), table_cell("count", len(name))] for name in ("a", "bcd")])
    assert rows.numbers("count") == (1.0, 3.0)
    for name in ("who", "when"):
        with pytest.raises(ValueError, match=f"^table 'made': one column '{name}' must hold numbers"):
            rows.numbers(name)


def test_rows_of_other_columns_are_refused():
    with pytest.raises(ValueError, match=re.escape("['a'], got ['b (s)']")):
        table("made", [[table_cell("a", 1)], [table_cell("b", 1, "s")]])
    with pytest.raises(ValueError, match="rows must be one or more, got none"):
        table("made", [])
