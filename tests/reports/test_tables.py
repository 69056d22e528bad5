"""Tables at any width: nothing is cut or lost, lines are as wide as each other, and every figure stands whole."""

import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.terminal import draws_boxes, shown_in
from paceline.reports.tables import (
    Column,
    Grid,
    at_least,
    broken,
    longest_piece,
    prose,
    shown,
    table,
    whole_percent,
    words_of,
)
from rich.cells import cell_len
from rich.console import Console

POLICIES = st.sampled_from(["plain", "draft:12/mid:6/target", "adaptive,draft=eagle,start=4,most=12", "specrouter"])
FIGURES = st.sampled_from(["1.00x", "2.13x ± 0.02", "1,234,567.8", "0.9953", ""])
HEADINGS = ("speed-up", "mean of requests", "tokens/s", "target calls /token", "log-lik. /token (own)", "refused")


@st.composite
def grids(draw):
    count = draw(st.integers(1, len(HEADINGS)))
    rows = draw(st.lists(st.tuples(POLICIES, *[FIGURES] * count), min_size=1, max_size=4))
    headings = HEADINGS[:count]
    columns = (Column(heading="policy", number=False), *(Column(heading=heading) for heading in headings))
    return Grid(columns=columns, rows=tuple(rows), title="a title", remarks=("a remark of some words",))


class Screen(StringIO):
    def __init__(self, encoding):
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self):
        return self._encoding


def printed(grid, width, encoding="utf-8"):
    screen = Screen(encoding)
    Console(file=screen, width=width, highlight=False).print(grid, crop=False)
    return screen.getvalue()


def parts_of(text, edge="┃┏┡│└├"):
    """The tables of a print, each a list of lines."""
    tables = [[]]
    for line in text.splitlines():
        if line[:1] in edge:
            if line[0] == "┏":
                tables.append([])
            tables[-1].append(line)
    return [table for table in tables if table]


@given(grid=grids(), width=st.integers(48, 160))
def test_nothing_is_cut_at_any_width(grid, width):
    text = printed(grid, width)
    assert "…" not in text
    assert all(cell_len(line) <= width for line in text.splitlines())
    for part in parts_of(text):
        assert len({cell_len(line) for line in part}) == 1
    figures = [cell for row in grid.rows for cell in row[1:] if cell]
    shown = re.findall(r"[^│┃]+", text)
    for figure in figures:
        assert sum(cell.strip() == figure for cell in shown) == figures.count(figure)


def test_what_does_not_fit_is_printed_in_parts_each_with_its_first_column():
    grid = Grid(
        columns=(Column(heading="policy", number=False), *(Column(heading=f"tag number {tag}") for tag in range(12))),
        rows=(("draft:4/target", *["1.25x"] * 12),),
    )
    tables = parts_of(printed(grid, 60))
    assert len(tables) > 1
    assert all("draft:4/" in "".join(table) for table in tables)
    assert sum(line.count("1.25x") for table in tables for line in table) == 12
    assert len(parts_of(printed(grid, 400))) == 1


def test_a_number_wider_than_the_console_is_shown_whole():
    grid = Grid(columns=(Column(heading="policy", number=False), Column(heading="n")), rows=(("plain", "9" * 30),))
    assert "9" * 30 in printed(grid, 20)


@given(grid=grids(), width=st.integers(60, 160), encoding=st.sampled_from(["ascii", "latin-1", "cp1252"]))
def test_what_a_screen_cannot_show_is_spelled(grid, width, encoding):
    text = printed(grid, width, encoding)
    text.encode(encoding)
    assert not draws_boxes(encoding)
    lines = [line for line in text.splitlines() if line[:1] in "|+"]
    assert len({len(line) for line in lines[: lines.index(lines[0], 1) + 1]}) == 1
    if encoding == "ascii":
        assert "±" not in text
        assert text.count("+- 0.02") == sum(cell.count("±") for row in grid.rows for cell in row)


def test_names_are_on_one_line_where_there_is_room():
    name, place = "my_policy.py:ByTag,margin=3", "synth-ladder/flat/batch-1"
    numbers = tuple(Column(heading=f"report: {number}") for number in range(9))
    shown = {}
    for whole in (False, True):
        columns = (Column(heading="policy", number=False, whole=whole), Column(heading="where", number=False), *numbers)
        grid = Grid(columns=columns, rows=((name, place, *["0.859"] * 9),))
        texts = [printed(grid, width) for width in (160, 120, 100, 60)]
        shown[whole] = [(len(parts_of(text)), text.count(name)) for text in texts]
    assert shown[False] == [(1, 1), (1, 0), (2, 1), (3, 1)]
    assert shown[True] == [(1, 1), (2, 2), (2, 2), (4, 4)]


def test_lookalikes_and_escapes():
    assert shown_in("1 ± 2 × 3 µs … é", "ascii") == "1 +- 2 x 3 us ... \\xe9"
    assert shown_in("1 ± 2 × 3 µs … é", "latin-1") == "1 ± 2 × 3 µs ... é"
    assert shown_in("日本", "utf-8") == "日本"


def test_only_what_is_bold_stands_out():
    grid = Grid(
        columns=(Column(heading="policy", number=False), Column(heading="speed-up")),
        rows=(("plain", "1.00x"), ("draft:4/target", "1.70x")),
        bold=frozenset({(1, 1)}),
    )
    screen = Screen("utf-8")
    Console(file=screen, width=60, highlight=False, force_terminal=True, color_system="standard").print(grid)
    assert "\x1b[1m    1.70x \x1b[0m" in screen.getvalue()
    assert "1m    1.00x" not in screen.getvalue()


@given(
    rows=st.lists(st.dictionaries(st.sampled_from(HEADINGS), FIGURES), max_size=5),
    texts=st.sets(st.sampled_from(HEADINGS)),
)
def test_rows_say_what_column_each_cell_is_in(rows, texts):
    rows = [{"policy": f"p{index}", **row} for index, row in enumerate(rows)]
    grid = table(rows, texts=texts, title="t", remarks=["r"], bold={(0, 0)}, lines=[0])
    headings = [column.heading for column in grid.columns]
    assert headings == list(dict.fromkeys(heading for row in rows for heading in row))
    assert [dict(zip(headings, cells, strict=True)) for cells in grid.rows] == [
        {heading: row.get(heading, "") for heading in headings} for row in rows
    ]
    assert all(column.number == (column.heading not in {"policy", *texts}) for column in grid.columns)
    assert (grid.title, grid.remarks, grid.bold, grid.lines) == ("t", ("r",), {(0, 0)}, {0})


def test_only_a_whole_share_is_a_hundred_percent():
    assert [whole_percent(share) for share in (1.0, 0.9999, 0.29, 0.0)] == ["100%", "99%", "29%", "0%"]


def test_a_figure_that_is_unknown():
    assert (shown(0.0, ".1%"), shown(None, ".1%"), shown(None, ".1%", unknown="-")) == ("0.0%", "", "-")


PARTS = st.sampled_from(
    ["draft:12", "mid:6", "1,234.56", "target", "start=4", "adaptive", "file.py:Class", "a-b", "日本語"]
)
NAMES = st.lists(PARTS, min_size=1, max_size=6).flatmap(
    lambda parts: st.lists(st.sampled_from(["/", ",", " "]), min_size=len(parts), max_size=len(parts)).map(
        lambda joints: "".join(part + joint for part, joint in zip(parts, joints, strict=True)).strip(" /,")
    )
)


def numbers(text):
    return re.findall(r"\d[\d.,]*\d|\d", text)


@given(text=NAMES, width=st.integers(2, 40))
def test_nothing_is_lost_and_no_number_is_broken(text, width):
    lines = broken(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert [number for line in lines for number in numbers(line)] == numbers(text)
    for line in lines:
        assert cell_len(line) <= width or numbers(line)


@given(text=NAMES)
def test_a_line_as_wide_as_the_longest_piece_cuts_none(text):
    width = max(1, longest_piece(text))
    assert all(cell_len(line) <= width for line in broken(text, width))
    for name in ("adaptive", "target", "draft:12", "1,234.56"):
        assert sum(line.count(name) for line in broken(text, width)) == text.count(name)


def test_names_are_broken_after_their_parts():
    assert broken("adaptive,draft=eagle,start=4,most=12", 21) == ["adaptive,draft=eagle,", "start=4,most=12"]
    assert broken("draft:12/mid:6/target", 15) == ["draft:12/mid:6/", "target"]
    assert broken("my_policy.py:MyPolicy", 13) == ["my_policy.py:", "MyPolicy"]
    assert broken("first line\nsecond", 40) == ["first line", "second"]
    assert broken("  draft", 7) == ["  draft"]


def test_prose_keeps_names_whole_where_it_can():
    assert prose("takes more than draft:4/target does", 24) == ["takes more than", "draft:4/target does"]
    assert prose("in draft:3/mid:6/target", 10) == ["in", "draft:3/", "mid:6/", "target"]
    assert prose("one\ntwo", 10) == ["one", "two"]


def test_headings_are_broken_between_words():
    assert words_of("tokens/s", 3) == ["tokens/s"]
    assert words_of("target calls /token", 12) == ["target calls", "/token"]
    assert words_of("", 5) == [""]


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.98073, "98.0%"), (0.9999, "99.9%"), (0.5, "50.0%"), (0.0, "0.0%"), (1.0, "100.0%")],
)
def test_a_share_that_is_the_least_is_rounded_down(share, said):
    assert at_least(share) == f"at least {said}"
