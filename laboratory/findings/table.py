"""Tables whose columns are declared where their values are, and how they look in a terminal and as Markdown.

Letters: R rows, C columns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...reports.tables import grid

Value = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The head of a column.

    Attributes:
        name: shown.
        unit: shown after the name; empty for none.
        digits: after the point; None: text or whole numbers.
    """

    name: str
    unit: str = ""
    digits: int | None = None

    @property
    def head(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, value: Value) -> str:
        """A value as tables show it."""
        if value is None or isinstance(value, str):
            return value or ""
        return f"{value:,}" if self.digits is None else f"{value:,.{self.digits}f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One value with the column that it stands in."""

    column: Column
    value: Value


def cell(name: str, value: Value, unit: str = "", digits: int | None = None) -> Cell:
    """A value and its column, in one line of a row; the arguments are those of `Column`."""
    return Cell(column=Column(name=name, unit=unit, digits=digits), value=value)


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
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: a row must have {len(self.columns)} cells, got {row}")
            for column, value in zip(self.columns, row, strict=True):
                where = f"table {self.title!r}: column {column.name!r}"
                if not isinstance(value, Value):
                    raise ValueError(f"{where} must hold text and numbers, got {value!r}")
                if isinstance(value, float) and column.digits is None:
                    raise ValueError(f"{where} must have digits, got {value}")

    def numbers(self, name: str) -> tuple[float, ...]:
        """The values `[R]` of the column of this name, as a panel draws them.

        Raises:
            ValueError: not exactly one column has the name, or it holds something else.
        """
        places = [place for place, column in enumerate(self.columns) if column.name == name]
        values = [row[places[0]] for row in self.rows] if len(places) == 1 else [None]
        numbers = tuple(float(value) for value in values if isinstance(value, int | float))
        if len(numbers) < len(values):
            raise ValueError(f"table {self.title!r}: one column {name!r} must hold numbers, got {values}")
        return numbers

    def texts(self) -> tuple[tuple[str, ...], ...]:
        """All values as they are shown, `[R][C]`."""
        return tuple(
            tuple(column.text(value) for column, value in zip(self.columns, row, strict=True)) for row in self.rows
        )

    def is_number(self, place: int) -> bool:
        """Whether the column at `place` holds no text."""
        return not any(isinstance(row[place], str) for row in self.rows)


def table(title: str, rows: Iterable[Sequence[Cell]]) -> Rows:
    """The table of rows whose cells say what column they are in.

    Raises:
        ValueError: no row, rows of other columns than the first one's, or as `Rows`.
    """
    each = [tuple(row) for row in rows]
    if not each:
        raise ValueError(f"table {title!r}: rows must be one or more, got none")
    columns = tuple(one.column for one in each[0])
    for row in each:
        if tuple(one.column for one in row) != columns:
            wanted, got = ([column.head for column in heads] for heads in (columns, [one.column for one in row]))
            raise ValueError(f"table {title!r}: columns must be the same in all rows, {wanted}, got {got}")
    return Rows(title=title, columns=columns, rows=tuple(tuple(one.value for one in row) for row in each))


def terminal_table(rows: Rows, *remarks: str, lines: Iterable[int] = ()) -> grid.Grid:
    """Numbers to the right, text to the left; remarks stand below, `lines` are drawn after these rows."""
    return grid.Grid(
        title=rows.title,
        columns=tuple(
            grid.Column(heading=column.head, number=rows.is_number(place)) for place, column in enumerate(rows.columns)
        ),
        rows=rows.texts(),
        remarks=remarks,
        lines=frozenset(lines),
    )


def markdown_table(rows: Rows) -> str:
    """Title, head and rows as lines of Markdown."""
    heads = [_escaped(column.head) for column in rows.columns]
    rules = ["---:" if rows.is_number(place) else "---" for place in range(len(heads))]
    body = [[_escaped(text) for text in texts] for texts in rows.texts()]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, rules, *body)]
    return "\n".join([f"**{_escaped(rows.title)}**", "", *lines])


def _escaped(text: str) -> str:
    """Without what would end a cell or start markup."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")
