"""Sets of axes, as figures show them, and how far simulated seconds are from measured ones. Letter: P points."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Literal

from .seconds import Cell


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
        wrong = [value for part in parts for value in part if not isfinite(value)]
        if wrong:
            raise ValueError(f"series {self.name!r}: numbers must be finite, got {wrong[0]}")


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
