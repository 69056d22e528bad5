"""Tables that are readable at any width, as text and as HTML, and results that print themselves (`Printed`).

Nothing is cut off and no number is broken. Where the columns do not fit, headings are broken first, then texts; where
even that is too wide, the table is printed in parts, each with its first column. Letters: R rows, C columns.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from math import floor
from typing import Annotated, Any

import pyarrow as pa
from pydantic import PlainSerializer
from rich.box import ASCII, HEAVY_HEAD, SQUARE, Box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ..base.terminal import shown_in

# A space; after `,` `/` `;` `_` that no digit follows; after `:` `-` before a letter. `draft:12/mid:6` keeps its 12.
_BREAKS = re.compile(r" +|(?<=[,/;_])(?![\d\s])|(?<=[:-])(?=[A-Za-z])")


def longest_piece(text: str) -> int:
    """Cells of the longest part of `text` that is not broken unless necessary."""
    return max((cell_len(piece.rstrip()) for line in text.split("\n") for piece in _pieces(line)), default=0)


def broken(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` >= 1 cells; a piece that is longer itself is cut, but never inside a number.

    A number of more than `width` digits makes a line that is too long.
    """
    return [line for part in text.split("\n") for line in _broken_line(part, width)]


def prose(text: str, width: int) -> list[str]:
    """Sentences in lines of at most `width` cells: names are not broken, unless one is longer than a line."""
    lines = []
    for paragraph in text.split("\n"):
        for line in words_of(paragraph, width):
            lines += [line] if cell_len(line) <= width else broken(line, width)
    return lines


def words_of(text: str, width: int) -> list[str]:
    """A text in lines of at most `width` cells, broken between words only; a word that is longer has its own line."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _broken_line(text: str, width: int) -> Iterator[str]:
    line = ""
    for piece in _pieces(text):
        if line and cell_len(line + piece.rstrip()) > width:
            yield line.rstrip()
            line = ""
        line += piece
        while cell_len(line.rstrip()) > width and (cut := _cut(line, width)):
            yield line[:cut]
            line = line[cut:]
    yield line.rstrip()


def _pieces(line: str) -> Iterator[str]:
    """The parts of a line between which it may be broken, each with its trailing spaces."""
    start = 0
    for found in _BREAKS.finditer(line):
        if found.end() > start:
            yield line[start : found.end()]
            start = found.end()
    if start < len(line):
        yield line[start:]


def _cut(text: str, width: int) -> int:
    """Where to cut a piece that is too long: as late as fits, not inside a number; 0 where there is no such place."""
    fitting = [index for index in range(1, len(text)) if cell_len(text[:index]) <= width]
    good = [index for index in fitting if not (_numeric(text[index - 1]) and _numeric(text[index]))]
    return good[-1] if good else 0


def _numeric(char: str) -> bool:
    return char.isdigit() or char in ".,"


MOST_LEAST = 24  # cells that a column of text reserves for a piece that should not be broken
MOST_WHOLE = 40  # cells of a text that is not broken anywhere, if its column says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The head of a column."""

    heading: str = ""  # words; broken between words if necessary. Empty: no heading
    number: bool = True  # whether its cells are right-aligned and never broken
    whole: bool = False  # whether cells of up to `MOST_WHOLE` are not broken: rather is the table in parts


def _in_order(cells: Iterable[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    return sorted(cells, key=lambda cell: (cell[0], -1 if cell[1] is None else cell[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table with its title and remarks; prints itself at the width of the console."""

    # `[C]`; the first is repeated where the table is printed in parts. No headings: no head is drawn
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]  # `[R][C]`
    title: str = ""  # above it
    remarks: tuple[str, ...] = ()  # below it, a line each
    # (row, column) of bold cells; None as a column is the whole row. JSON has them in order: None has no fixed hash.
    bold: Annotated[frozenset[tuple[int, int | None]], PlainSerializer(_in_order)] = frozenset()
    lines: frozenset[int] = frozenset()  # rows after which a line is drawn

    def __post_init__(self) -> None:
        odd = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if odd is not None:
            raise ValueError(f"each row must have {len(self.columns)} cells, got {len(odd)} in {odd}")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Title, table and remarks for this console, line by line."""
        shown, width = self._in(options.encoding), options.max_width
        for line in prose(shown.title, width) if shown.title else ():
            yield _line(line, style="italic")
        box = ASCII if options.ascii_only else HEAVY_HEAD if self._headed else SQUARE
        for part, widths, padded in _parts(shown, width) if shown.columns else ():
            yield from part._drawn(widths, box=box, padded=padded)
        for remark in shown.remarks:
            yield from map(_line, prose(remark, width))

    @property
    def _headed(self) -> bool:
        return any(column.heading for column in self.columns)

    def _in(self, encoding: str) -> "Grid":
        """The table in characters that the console can show, which may have another width."""
        return replace(
            self,
            columns=tuple(replace(column, heading=shown_in(column.heading, encoding)) for column in self.columns),
            rows=tuple(tuple(shown_in(cell, encoding) for cell in row) for row in self.rows),
            title=shown_in(self.title, encoding),
            remarks=tuple(shown_in(remark, encoding) for remark in self.remarks),
        )

    def _drawn(self, widths: Sequence[int], *, box: Box, padded: bool) -> Iterator[Text]:
        last = len(widths) - 1
        pads = [(int(padded or place > 0), int(padded or place < last)) for place in range(len(widths))]
        full = [left + width + right for width, (left, right) in zip(widths, pads, strict=True)]
        draw = partial(_row, columns=list(zip(self.columns, widths, pads, strict=True)))
        yield _line(box.get_top(full))
        if self._headed:
            heads = [column.heading for column in self.columns]
            sides = box.head_left, box.head_vertical, box.head_right
            yield from draw(heads, sides=sides, bold=range(last + 1), at_bottom=True)
            yield _line(box.get_row(full, "head"))
        for index, cells in enumerate(self.rows):
            bold = {place for place in range(last + 1) if {(index, None), (index, place)} & self.bold}
            yield from draw(cells, sides=(box.mid_left, box.mid_vertical, box.mid_right), bold=bold)
            if index in self.lines and index + 1 < len(self.rows):
                yield _line(box.get_row(full, "row"))
        yield _line(box.get_bottom(full))

    def _only(self, places: Sequence[int]) -> "Grid":
        kept = dict(zip(places, range(len(places)), strict=True))
        return replace(
            self,
            columns=tuple(self.columns[place] for place in places),
            rows=tuple(tuple(row[place] for place in places) for row in self.rows),
            bold=frozenset(
                (row, None if place is None else kept[place])
                for row, place in self.bold
                if place is None or place in kept
            ),
        )


def table(
    rows: Iterable[Mapping[str, str]],
    *,
    texts: Collection[str] = (),
    title: str = "",
    remarks: Iterable[str] = (),
    bold: Collection[tuple[int, int | None]] = (),
    lines: Collection[int] = (),
) -> Grid:
    """A table of rows, each a mapping from heading to cell; a heading that a row lacks is an empty cell.

    `texts` are headings of columns that hold text; the first column always does. The rest is as in `Grid`.
    """
    every = list(rows)
    headings = list(dict.fromkeys(heading for row in every for heading in row))
    texts = {*headings[:1], *texts}
    return Grid(
        columns=tuple(Column(heading=heading, number=heading not in texts) for heading in headings),
        rows=tuple(tuple(row.get(heading, "") for heading in headings) for row in every),
        title=title,
        remarks=tuple(remarks),
        bold=frozenset(bold),
        lines=frozenset(lines),
    )


def shown(figure: float | None, style: str, *, unknown: str = "") -> str:
    """A figure in a style of format(), `unknown` for None."""
    return unknown if figure is None else f"{figure:{style}}"


def between(ends: tuple[float, float] | None, style: str = ".2f", *, unknown: str = "") -> str:
    """Both ends of a range in a style of format(), `unknown` for None."""
    return unknown if ends is None else f"{ends[0]:{style}} to {ends[1]:{style}}"


def at_least(share: float) -> str:
    """In words, that a share is no less: rounded down, so that only a whole one is 100%."""
    return f"at least {floor(share * 1e3) / 1e3:.1%}"


def whole_percent(share: float) -> str:
    """A share rounded down, so that only a whole one is 100%."""
    return f"{floor(100 * share + 1e-9)}%"


def facts(title: str, values: Mapping[str, str]) -> Grid:
    """Names and values, a line each, without headings."""
    return Grid(title=title, columns=(Column(number=False), Column(number=False)), rows=tuple(values.items()))


def _row(
    cells: Sequence[str],
    *,
    columns: Sequence[tuple[Column, int, tuple[int, int]]],
    sides: tuple[str, str, str],
    bold: Collection[int],
    at_bottom: bool = False,
) -> Iterator[Text]:
    """The lines of one row of cells `[C]` in columns `[C]`, each with its width and the padding on either side.

    `sides` are drawn at the left, between columns, and at the right; `bold` are the indices of bold cells. `at_bottom`:
    the cells are headings, broken between words only, and aligned to the bottom.
    """
    lines_of = words_of if at_bottom else broken
    texts = [lines_of(cell, width) for cell, (_, width, _) in zip(cells, columns, strict=True)]
    if at_bottom:
        tallest = max(map(len, texts))
        texts = [[""] * (tallest - len(text)) + text for text in texts]
    left, between, right = sides
    for index in range(max(map(len, texts))):
        line = Text(left, no_wrap=True, overflow="ignore")
        for place, (text, (column, width, pads)) in enumerate(zip(texts, columns, strict=True)):
            part = text[index] if index < len(text) else ""
            rest = " " * (width - cell_len(part))
            part = rest + part if column.number else part + rest
            line.append(" " * pads[0] + part + " " * pads[1], style="bold" if place in bold else None)
            line.append(right if place == len(texts) - 1 else between)
        yield line


def _line(text: str, *, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def _parts(grid: Grid, width: int) -> Iterator[tuple[Grid, list[int], bool]]:
    """(part, widths of its columns, whether its edges are padded), each as wide as fits."""
    count = len(grid.columns)
    while count > 2 and _widths(grid._only(range(count)), width) is None:
        count -= 1
    part = grid._only(range(count))
    yield part, *(_widths(part, width) or (_least(part), False))
    if count < len(grid.columns):
        yield from _parts(grid._only([0, *range(count, len(grid.columns))]), width)


def _widths(grid: Grid, width: int) -> tuple[list[int], bool] | None:
    """(widths of the columns, whether the edges are padded); None where they do not fit."""
    texts = [_texts(grid, place) for place in range(len(grid.columns))]
    whole = [max(cell_len(line) for text in column for line in text.split("\n")) for column in texts]
    least = _least(grid)
    numbers = [column.number for column in grid.columns]
    narrow = [low if number else high for low, high, number in zip(least, whole, numbers, strict=True)]
    for widths, padded in ((whole, True), (narrow, True), (narrow, False)):
        if sum(widths) + _overhead(len(widths), padded=padded) <= width:
            return widths, padded
    room = width - _overhead(len(narrow), padded=False)
    while sum(narrow) > room:
        widest = max(range(len(narrow)), key=lambda place: (narrow[place] > least[place], narrow[place]))
        if narrow[widest] <= least[widest]:
            return None
        narrow[widest] -= 1
    return narrow, False


def _least(grid: Grid) -> list[int]:
    """Widths at which headings are broken between words, and texts where they may be."""
    least = []
    for place, column in enumerate(grid.columns):
        heading, *cells = _texts(grid, place)
        if column.number:
            width = max(cell_len(cell) for cell in ("", *cells))
        elif column.whole:
            width = min(MOST_WHOLE, max(cell_len(cell) for cell in ("", *cells)))
        else:
            width = min(MOST_LEAST, max(longest_piece(cell) for cell in ("", *cells)))
        least.append(max(1, width, *(cell_len(word) for word in heading.split())))
    return least


def _texts(grid: Grid, place: int) -> list[str]:
    return [grid.columns[place].heading, *(row[place] for row in grid.rows)]


def _overhead(columns: int, *, padded: bool) -> int:
    """Cells for lines and padding."""
    return 3 * columns + 1 if padded else 3 * columns - 1


def html_table(grid: Grid, *, on_page: bool = False, captioned: bool = True) -> str:
    """A table with its title and its remarks; `captioned`: whether the title is shown.

    On a page (`page.html`) classes style the cells, and columns sort the table unless its rows are grouped; elsewhere
    it needs neither style sheet nor script.
    """
    sorts = on_page and not grid.lines and len(grid.rows) > 1
    sides = [_side(column, on_page=on_page) for column in grid.columns]
    caption = f"<caption>{html_lines(grid.title)}</caption>" if captioned and grid.title else ""
    wrap = '<button type="button">{}</button>' if sorts else "{}"
    heads = [wrap.format(escape(column.heading)) for column in grid.columns]
    head = "".join(f'<th scope="col"{side}>{text}</th>' for side, text in zip(sides, heads, strict=True))
    headed = f"<thead><tr>{head}</tr></thead>" if grid._headed else ""
    rows = "\n".join(_html_row(grid, index, sides) for index in range(len(grid.rows)))
    drawn = f"<table{' class=sorts' if sorts else ''}>{caption}{headed}<tbody>{rows}</tbody></table>"
    if on_page:
        label = escape(grid.title or "table")
        drawn = f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{drawn}</div>'
    remarks = "".join(f"<li>{html_lines(remark)}</li>" for remark in grid.remarks)
    return (drawn if grid.columns else "") + (f'<ul class="remarks">{remarks}</ul>' if remarks else "")


def html_lines(text: str) -> str:
    """A text in HTML, with its line breaks."""
    return escape(text).replace("\n", "<br>")


def _side(column: Column, *, on_page: bool) -> str:
    if on_page:
        return f' class="{"number" if column.number else "text"}"'
    return f' style="text-align: {"right" if column.number else "left"}"'


def _html_row(grid: Grid, index: int, sides: Sequence[str]) -> str:
    """A row, headed by its first cell, which may be indented."""
    cells = []
    for place, (text, side) in enumerate(zip(grid.rows[index], sides, strict=True)):
        shown = html_lines(text)
        if {(index, None), (index, place)} & grid.bold:
            shown = f"<b>{shown}</b>"
        if place == 0 and text.startswith(" "):
            side = side.removesuffix('"') + (' within"' if "class" in side else '; padding-left: 2em"')
        cells.append(f"<td{side}>{shown}</td>" if place else f'<th scope="row"{side}>{shown}</th>')
    ends = ' class="ends"' if index in grid.lines else ""
    return f"<tr{ends}>{''.join(cells)}</tr>"


# Keys of a meta that hold remarks, in the order of their lines; remarks may name arguments.
REMARKS = ("cost_notes", "left_out", "remarks")

FILE_WIDTH = 160  # cells; of tables in a file or a pipe


class Printed(ABC):
    """A result that prints as its tables with an empty line between, then its lines."""

    __slots__ = ()

    def tables(self) -> Sequence[Grid]:
        """From the first to the last; none by default."""
        return ()

    def lines(self) -> Sequence[str]:
        """Lines below the tables; none by default."""
        return ()

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All of it, in the form that docs/compare.md documents."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Rows with the same keys: numbers, texts, and lists of these; None: unknown.

        By default one row, of `to_json`.
        """
        return flat_rows([self.to_json()])

    def __repr__(self) -> str:
        """As the command line prints it, without colours."""
        console = console_of_output(plain=True)
        with console.capture() as captured:
            print_tables(console, self.tables())
            for line in self.lines():
                print_line(console, line)
        return captured.get().rstrip("\n")

    def _repr_html_(self) -> str:
        """For notebooks; needs no style sheet."""
        return "\n".join([*map(html_table, self.tables()), *(f"<p>{escape(line)}</p>" for line in self.lines())])

    def to_arrow(self) -> pa.Table:
        """The rows of `to_dicts`; pandas (`.to_pandas()`), polars (`polars.from_arrow`) and DuckDB read it."""
        return pa.Table.from_pylist(self.to_dicts())


def console_of_output(*, plain: bool = False) -> Console:
    """Standard output, as wide as the terminal or COLUMNS, else `FILE_WIDTH`; `plain`: only text."""
    # Names come from users: nothing in them is markup or a number.
    make = partial(Console, markup=False, highlight=False)
    if plain:
        make = partial(make, color_system=None, force_jupyter=False)
    console = make()
    known = console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    return console if known else make(width=FILE_WIDTH)


def print_tables(console: Console, tables: Iterable[Grid]) -> None:
    """Print tables with an empty line between them."""
    for index, table in enumerate(tables):
        if index:
            console.print()
        console.print(table, crop=False)


def prose_of(line: str) -> Grid:
    """A line of words, which is broken between them at the width of tables."""
    return Grid(columns=(), rows=(), remarks=(line,))


def print_line(console: Console, line: str) -> None:
    """Print words broken at the width of tables; a text with line breaks keeps its lines, whatever their width."""
    console.print(Text(line) if "\n" in line else prose_of(line), crop=False, soft_wrap="\n" in line)


def flat_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows without objects in objects, `{"ttft_s": {"mean": 1}}` as `{"ttft_s_mean": 1}`, all with the same keys."""
    flat = [_flat(row) for row in rows]
    keys = dict.fromkeys(key for row in flat for key in row)
    return [{key: row.get(key) for key in keys} for row in flat]


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        found |= _flat(value, f"{before}{name}_") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found
