"""What prints itself as tables and lines of words: in a terminal, in a notebook, and row by row for other programs."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import pyarrow as pa
from rich.console import Console

from .grid import Grid
from .html import html_table

# What a meta has of remarks, in the order of their lines; they may name arguments.
REMARKS = ("cost_notes", "left_out", "remarks")

FILE_WIDTH = 160  # cells; of tables in a file or a pipe


class Printed(ABC):
    """A result that prints as its tables with an empty line between, then its lines."""

    __slots__ = ()

    @abstractmethod
    def tables(self) -> Sequence[Grid]:
        """From the first to the last."""

    @abstractmethod
    def lines(self) -> Sequence[str]:
        """What stands below the tables."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All of it, in the form that docs/compare.md documents."""

    @abstractmethod
    def to_dicts(self) -> list[dict[str, Any]]:
        """A row each, all with the same keys: numbers, texts, and lists of such; None where nothing is known."""

    def __repr__(self) -> str:
        """As the command line prints it, without colours."""
        console = console_of_output(plain=True)
        with console.capture() as captured:
            print_tables(console, self.tables())
            print_tables(console, [prose_of(line) for line in self.lines()], between="")
        return captured.get().rstrip("\n")

    def _repr_html_(self) -> str:
        """For notebooks; needs no style sheet."""
        return "\n".join([*map(html_table, self.tables()), *(f"<p>{escape(line)}</p>" for line in self.lines())])

    def to_arrow(self) -> pa.Table:
        """The rows of `to_dicts`; pandas (`.to_pandas()`), polars (`polars.from_arrow`) and DuckDB read it."""
        return pa.Table.from_pylist(self.to_dicts())


def console_of_output(*, plain: bool = False) -> Console:
    """Standard output: as wide as the terminal or as COLUMNS says, `FILE_WIDTH` where neither is known.

    Args:
        plain: whether it writes nothing but text, wherever it runs.
    """
    # Names come from users: what looks like markup or a number in one is none.
    make = partial(Console, markup=False, highlight=False)
    if plain:
        make = partial(make, color_system=None, force_jupyter=False)
    console = make()
    known = console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    return console if known else make(width=FILE_WIDTH)


def print_tables(console: Console, tables: Iterable[Grid], *, between: str = "\n") -> None:
    """Print tables with `between` before each but the first."""
    for index, table in enumerate(tables):
        if index:
            console.print(end=between)
        console.print(table, crop=False)


def prose_of(line: str) -> Grid:
    """A line of words, which is broken between them at the width of tables."""
    return Grid(columns=(), rows=(), remarks=(line,))


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
