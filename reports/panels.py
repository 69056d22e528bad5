"""Sets of axes, as figures show them, and how far simulated seconds are from measured ones.

Letters: P points, R rows, C columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Literal

from .validation import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one name; raises ValueError where lengths differ, or a number is not finite."""

    name: str  # in the legend; equal names have equal colours in all panels
    x: tuple[float, ...]  # `[P]`; in panels with categories their index from 0
    y: tuple[float, ...]  # `[P]`
    error: tuple[float, ...] | None = None  # `[P]`, half the width of an error bar, >= 0; None: none are drawn

    def __post_init__(self) -> None:
        parts = [self.x, self.y] if self.error is None else [self.x, self.y, self.error]
        if len({len(part) for part in parts}) > 1:
            raise ValueError(f"series {self.name!r}: x, y and error must be as long, got {[len(p) for p in parts]}")
        _check_finite(f"series {self.name!r}", [value for part in parts for value in part])


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One set of axes.

    Raises ValueError for nothing to draw, an x that is no index of a category, or a number <= 0 on a logarithmic axis.
    """

    # title, x_label, y_label: shown; a label says the unit
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]  # drawn in this order, at least one
    kind: Literal["line", "bar", "scatter"] = "line"  # of marks
    categories: tuple[str, ...] = ()  # names along x at 0, 1, ...; bars need them
    # log_x, log_y: scale of the axes
    log_x: bool = False
    log_y: bool = False
    diagonal: bool = False  # whether the line of equal x and y is drawn

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
class Ranking:
    """Names from top to bottom, each with a figure and its interval; raises ValueError as `Panel`."""

    title: str
    x_label: str  # says the unit, and what intervals and filled marks are
    names: tuple[str, ...]  # `[P]`, at least one
    values: tuple[float, ...]  # `[P]`
    bounds: tuple[tuple[float, float] | None, ...]  # `[P]` both ends of the interval; None where it is not known
    filled: frozenset[int] = frozenset()  # indices of names whose marks are filled
    reference: float | None = None  # where a line is drawn, such as 1 of a speed-up
    style: str = ".2f"  # of the figures beside the names
    unit: str = ""  # that stands right after each

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError(f"ranking {self.title!r}: names must hold at least one, got none")
        if len({len(self.names), len(self.values), len(self.bounds)}) > 1:
            lengths = [len(self.names), len(self.values), len(self.bounds)]
            raise ValueError(f"ranking {self.title!r}: names, values and bounds must be as long, got {lengths}")
        _check_finite(f"ranking {self.title!r}", [*self.values, *(end for one in self.bounds if one for end in one)])


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Cells by row and column, each with its figure written in it; raises ValueError as `Panel`."""

    title: str
    x_label: str
    y_label: str
    columns: tuple[str, ...]  # `[C]`
    rows: tuple[str, ...]  # `[R]`, from top to bottom
    values: tuple[tuple[float | None, ...], ...]  # `[R][C]`; None where nothing is known
    value_label: str  # what the figures are
    style: str = ".2f"
    marked: frozenset[tuple[int, int]] = frozenset()  # (row, column) of cells that are framed
    least: float | None = None  # cells below it are hatched

    def __post_init__(self) -> None:
        if len(self.values) != len(self.rows) or {len(row) for row in self.values} != {len(self.columns)}:
            shape = [len(row) for row in self.values]
            raise ValueError(
                f"heat map {self.title!r}: values must be {len(self.rows)} x {len(self.columns)}, got rows of {shape}"
            )
        known = [value for row in self.values for value in row if value is not None]
        if not known:
            raise ValueError(f"heat map {self.title!r}: values must hold at least one, got none")
        _check_finite(f"heat map {self.title!r}", known)


AnyPanel = Panel | Ranking | HeatMap


def _check_finite(where: str, values: Iterable[float]) -> None:
    wrong = [value for value in values if not isfinite(value)]
    if wrong:
        raise ValueError(f"{where}: numbers must be finite, got {wrong[0]}")


def series_of(x: Sequence[float], y: Mapping[str, Iterable[float]]) -> tuple[Series, ...]:
    """A series for each name, all over the same `x`."""
    places = tuple(map(float, x))
    return tuple(Series(name=name, x=places, y=tuple(values)) for name, values in y.items())


def by_category(
    title: str,
    y_label: str,
    categories: Sequence[object],
    y: Mapping[str, Iterable[float]],
    *,
    x_label: str = "",
    kind: Literal["bar", "scatter"] = "bar",
) -> Panel:
    """A panel of names along x; each series of `y` has a value for every category."""
    return Panel(
        title=title,
        x_label=x_label,
        y_label=y_label,
        kind=kind,
        categories=tuple(map(str, categories)),
        series=series_of(range(len(categories)), y),
    )


def validation_panels(cells: Sequence[Cell]) -> tuple[Panel, Panel]:
    """Simulated over measured seconds of at least one cell, and the error by policy; both by requests at a time."""
    batches = sorted({cell.batch for cell in cells})
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    by_batch = [(f"batch {batch}", [cell for cell in cells if cell.batch == batch]) for batch in batches]
    seconds = Panel(
        title="Seconds of each policy, batch and tag" + (", forced" if any(cell.forced for cell in cells) else ""),
        x_label="measured, s",
        y_label="simulated, s",
        kind="scatter",
        log_x=True,
        log_y=True,
        diagonal=True,
        series=tuple(
            Series(
                name=name,
                x=tuple(cell.measured_s for cell in some),
                y=tuple(cell.simulated_s for cell in some),
            )
            for name, some in by_batch
        ),
    )
    errors = Panel(
        title="Error of total seconds: median over tags, half their range as bars",
        x_label="",
        y_label="simulated over measured - 1, %",
        kind="bar",
        categories=tuple(policies),
        series=tuple(_errors(name, some, policies) for name, some in by_batch),
    )
    return seconds, errors


def _errors(name: str, cells: Sequence[Cell], policies: Sequence[str]) -> Series:
    """Of one batch: the median over tags, and half of their range."""
    of_policy = [[100 * cell.error for cell in cells if cell.policy == policy] for policy in policies]
    known = [(place, errors) for place, errors in enumerate(of_policy) if errors]
    return Series(
        name=name,
        x=tuple(float(place) for place, _ in known),
        y=tuple(median(errors) for _, errors in known),
        error=tuple((max(errors) - min(errors)) / 2 for _, errors in known),
    )
