"""Tables whose columns are declared where their values are, and tables as Markdown.

Letters: R rows, C columns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...reports.tables.grid import Column, Grid

Value = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a column says of its values.

    Attributes:
        name: shown.
        unit: shown after the name; empty for none.
        digits: after the point; None: text or whole numbers.
    """

    name: str
    unit: str = ""
    digits: int | None = None

    @property
    def words(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, value: Value) -> str:
        """A value as tables show it."""
        if value is None or isinstance(value, str):
            return value or ""
        return f"{value:,}" if self.digits is None else f"{value:,.{self.digits}f}"


class Cell(NamedTuple):
    """One value under the head of its column."""

    head: Head
    value: Value


def cell(name: str, value: Value, unit: str = "", digits: int | None = None) -> Cell:
    """A value and its head, in one line of a row; the arguments are those of `Head`."""
    return Cell(Head(name=name, unit=unit, digits=digits), value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A table.

    Attributes:
        title: one line.
        columns: `[C]`.
        rows: `[R][C]`; None is an empty cell.

    Raises:
        ValueError: a row of another length, a value of another type, or a float in a column without digits.
    """

    title: str
    columns: tuple[Head, ...]
    rows: tuple[tuple[Value, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: a row must have {len(self.columns)} cells, got {row}")
            for head, value in zip(self.columns, row, strict=True):
                where = f"table {self.title!r}: column {head.name!r}"
                if not isinstance(value, Value):
                    raise ValueError(f"{where} must hold text and numbers, got {value!r}")
                if isinstance(value, float) and head.digits is None:
                    raise ValueError(f"{where} must have digits, got {value}")

    def numbers(self, name: str) -> tuple[float, ...]:
        """The values `[R]` of the column of this name, as a panel draws them.

        Raises:
            ValueError: not exactly one column has the name, or it holds something else.
        """
        places = [place for place, head in enumerate(self.columns) if head.name == name]
        values = [row[places[0]] for row in self.rows] if len(places) == 1 else [None]
        numbers = tuple(float(value) for value in values if isinstance(value, int | float))
        if len(numbers) < len(values):
            raise ValueError(f"table {self.title!r}: one column {name!r} must hold numbers, got {values}")
        return numbers

    def grid(self, *remarks: str, lines: Iterable[int] = ()) -> Grid:
        """As it is shown, numbers to the right, text to the left; remarks below, `lines` drawn after these rows."""
        numbers = [not any(isinstance(row[place], str) for row in self.rows) for place in range(len(self.columns))]
        return Grid(
            title=self.title,
            columns=tuple(
                Column(heading=head.words, number=number) for head, number in zip(self.columns, numbers, strict=True)
            ),
            rows=tuple(
                tuple(head.text(value) for head, value in zip(self.columns, row, strict=True)) for row in self.rows
            ),
            remarks=remarks,
            lines=frozenset(lines),
        )


def table(title: str, rows: Iterable[Sequence[Cell]]) -> Rows:
    """The table of rows whose cells say what column they are in.

    Raises:
        ValueError: no row, rows of other columns than the first one's, or as `Rows`.
    """
    each = [tuple(row) for row in rows]
    if not each:
        raise ValueError(f"table {title!r}: rows must be one or more, got none")
    heads = tuple(one.head for one in each[0])
    for row in each:
        if (got := tuple(one.head for one in row)) != heads:
            wanted, found = ([head.words for head in side] for side in (heads, got))
            raise ValueError(f"table {title!r}: columns must be the same in all rows, {wanted}, got {found}")
    return Rows(title=title, columns=heads, rows=tuple(tuple(one.value for one in row) for row in each))


def markdown_table(shown: Grid) -> str:
    """Title, if there is one, head and rows as lines of Markdown."""
    heads = [column.heading for column in shown.columns]
    rules = ["---:" if column.number else "---" for column in shown.columns]
    head, *body = ([_escaped(text) for text in texts] for texts in (heads, *shown.rows))
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rules, *body)]
    return "\n".join([*([f"**{_escaped(shown.title)}**", ""] if shown.title else []), *lines])


def _escaped(text: str) -> str:
    """Without what would end a cell or start markup."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")
