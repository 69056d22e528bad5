"""What an experiment is given and what it returns: a setting, and a finding of tables, panels and an answer."""

from collections.abc import Collection
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

Cell = str | int | float | None
MOST_PANELS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every experiment is given.

    Attributes:
        pool: folder of the pool; experiments with real models read its `prompts.jsonl`.
        trace: folder of the recording.
        seed: of whatever is drawn.
        threads: CPU threads of torch, >= 1.
        limit: prompts and recorded requests at most, >= 1; None: the experiment's default.

    Raises:
        ValueError: threads or limit below 1.
    """

    pool: Path
    trace: Path
    seed: int
    threads: int
    limit: int | None

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads must be >= 1, got {self.threads}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be >= 1, got {self.limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The head of a column.

    Attributes:
        name: shown.
        unit: shown behind the name; empty for none.
        digits: behind the point; None: text or whole numbers.
    """

    name: str
    unit: str = ""
    digits: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A table. Letters: R rows, C columns.

    Attributes:
        title: one line.
        columns: `[C]`.
        rows: `[R][C]`; None is an empty cell.

    Raises:
        ValueError: a row of another length, a cell of another type, or a float in a column without digits.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: a row must have {len(self.columns)} cells, got {row}")
            for column, cell in zip(self.columns, row, strict=True):
                where = f"table {self.title!r}: column {column.name!r}"
                if not isinstance(cell, Cell):
                    raise ValueError(f"{where} must hold text and numbers, got {cell!r}")
                if isinstance(cell, float) and column.digits is None:
                    raise ValueError(f"{where} must have digits, got {cell}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one name. Letter: P points.

    Attributes:
        name: in the legend; equal names have equal colours in all panels.
        x: `[P]`; in panels with categories their index from 0.
        y: `[P]`.
        error: `[P]`, half the width of an error bar, >= 0; None: none are drawn.

    Raises:
        ValueError: lengths differ, or a number is not finite.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    error: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        parts = [self.x, self.y] if self.error is None else [self.x, self.y, self.error]
        if len({len(part) for part in parts}) > 1:
            raise ValueError(f"series {self.name!r}: x, y and error must be as long, got {[len(p) for p in parts]}")
        wrong = [value for part in parts for value in part if not isfinite(value)]
        if wrong:
            raise ValueError(f"series {self.name!r}: numbers must be finite, got {wrong[0]}")


def x_of(categories: Collection[object]) -> tuple[float, ...]:
    """The `x` of a series with a point for each of a panel's categories."""
    return tuple(map(float, range(len(categories))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One set of axes.

    Attributes:
        title, x_label, y_label: shown; a label says the unit.
        series: drawn in this order, at least one.
        kind: of marks.
        categories: names along x at 0, 1, ...; bars need them.
        log_x, log_y: scale of the axes.

    Raises:
        ValueError: nothing to draw, an x that is no index of a category, or a number <= 0 on a logarithmic axis.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: Literal["line", "bar", "scatter"] = "line"
    categories: tuple[str, ...] = ()
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        if not any(series.x for series in self.series):
            raise ValueError(f"panel {self.title!r}: series must hold at least one point, got none")
        if self.kind == "bar" and not self.categories:
            raise ValueError(f"panel {self.title!r}: bars must have categories, got none")
        for series in self.series:
            self._check(series)

    def _check(self, series: Series) -> None:
        where = f"panel {self.title!r}, series {series.name!r}"
        allowed = range(len(self.categories))
        strays = [x for x in series.x if x not in allowed] if self.categories else []
        if strays:
            raise ValueError(f"{where}: x must be an index of {len(self.categories)} categories, got {strays[0]}")
        for axis, logarithmic, values in (("x", self.log_x, series.x), ("y", self.log_y, series.y)):
            if logarithmic and values and min(values) <= 0:
                raise ValueError(f"{where}: {axis} must be > 0 on a logarithmic axis, got {min(values)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What an experiment returns.

    Attributes:
        question: one sentence.
        tables: at least one.
        panels: of one figure, 1 to 4.
        answer: one to four sentences, made from what was just measured.

    Raises:
        ValueError: no table, or no or too many panels.
    """

    question: str
    tables: tuple[Rows, ...]
    panels: tuple[Panel, ...]
    answer: str

    def __post_init__(self) -> None:
        if not self.tables:
            raise ValueError("tables must hold at least one table, got ()")
        if not 1 <= len(self.panels) <= MOST_PANELS:
            raise ValueError(f"panels must be 1 to {MOST_PANELS}, got {len(self.panels)}")
