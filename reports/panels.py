"""The content of figures and pages: panels as plain data, and those of results. `figure.py` draws them.

Letters: P points, R rows, C columns, S spans.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import isfinite
from statistics import median
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .intervals import Interval
from .regret import Regret
from .seconds_by_tag import ByTag
from .summary import LevelSummary, Summary
from .tables import Grid
from .validation import Cell
from .waterfall import LOSSES, Waterfall

MOST_LINES = 6  # policies whose positions are drawn: more lines cannot be distinguished
MOST_CHAINS = 15  # of a sweep that is no grid
INTERVAL = "bars: 95% interval over requests"
MOST_WATERFALLS = 3  # policies
QUANTILES = 101  # points of a distribution
MOST_IN_MS = 10.0  # seconds of the longest time in a picture that counts milliseconds
MOST_INSTANTS = 200  # of a line over time


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one name; raises ValueError where lengths differ, or a number is not finite."""

    name: str  # in the legend; equal names have equal colours in all panels
    x: tuple[float, ...]  # `[P]`; in panels with categories their index from 0
    y: tuple[float, ...]  # `[P]`
    ends: tuple[tuple[float, float], ...] | None = None  # `[P]` of error bars, the lower one first; None: no bars

    def __post_init__(self) -> None:
        sizes = [len(part) for part in (self.x, self.y, self.ends) if part is not None]
        if len(set(sizes)) > 1:
            raise ValueError(f"series {self.name!r}: x, y and ends must be as long, got {sizes}")
        _check_finite(f"series {self.name!r}", [*self.x, *self.y, *chain.from_iterable(self.ends or ())])


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
    kind: Literal["line", "steps", "bar", "scatter"] = "line"  # of marks; steps: each value holds until the next one
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
    reference: float | None = None  # where a line is drawn, such as 1 for a speed-up
    style: str = ".2f"  # of the figures beside the names
    unit: str = ""  # right after each

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
    values: tuple[tuple[float | None, ...], ...]  # `[R][C]`; None: unknown
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


class Span(NamedTuple):
    """A bar from one value to another."""

    row: int
    start: float
    end: float
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Bars by row, from left to right; raises ValueError as `Panel`, and for an unknown row or kind."""

    title: str
    x_label: str
    rows: tuple[str, ...]  # `[R]`, from top to bottom
    spans: tuple[Span, ...]  # `[S]`, at least one; later ones are drawn above earlier ones
    kinds: tuple[str, ...]  # all possible ones, in the order of their colours
    style: str = ""  # format of each span's length, written beside it; empty: not written

    def __post_init__(self) -> None:
        if not self.spans:
            raise ValueError(f"spans {self.title!r}: there must be one, got none")
        unknown = [span.kind for span in self.spans if span.kind not in self.kinds]
        if unknown:
            raise ValueError(f"spans {self.title!r}: kind must be one of {', '.join(self.kinds)}, got {unknown[0]}")
        strays = [span.row for span in self.spans if not 0 <= span.row < len(self.rows)]
        if strays:
            raise ValueError(f"spans {self.title!r}: row must be an index of {len(self.rows)}, got {strays[0]}")
        _check_finite(f"spans {self.title!r}", [end for span in self.spans for end in (span.start, span.end)])


AnyPanel = Panel | Ranking | HeatMap | Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a result: its tables and its panels."""

    topic: str  # one of `page.TOPICS`, which orders them
    tables: tuple[Grid, ...] = ()
    panels: tuple[AnyPanel, ...] = ()


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


def kept_by_position(rows: Sequence[Summary]) -> list[AnyPanel]:
    """How often a round keeps the drafted token at each position; rows are fastest first. Empty if no policy drafts."""
    drafting = [row for row in rows if len(row.accepted_histogram) > 1 and not row.levels[-1].trees]
    series = []
    for row in drafting[:MOST_LINES]:
        rounds = sum(row.accepted_histogram)
        at_least = list(accumulate(reversed(row.accepted_histogram)))[::-1][1:]
        positions = tuple(float(place) for place in range(1, len(at_least) + 1))
        series.append(Series(name=row.policy, x=positions, y=tuple(count / rounds for count in at_least)))
    if not series:
        return []
    fastest = f", {MOST_LINES} fastest" if len(drafting) > MOST_LINES else ""
    return [
        Panel(
            title=f"Drafted tokens the target keeps, by position{fastest}",
            x_label="position in the draft",
            y_label="share of rounds",
            series=tuple(series),
        )
    ]


def seconds_by_member(rows: Sequence[Summary]) -> HeatMap:
    """Seconds of each run by member; members without any are left out."""
    return _by_member(
        rows,
        lambda level: level.share_of_seconds or None,
        title="Where the seconds go",
        x_label="member",
        value_label="share of the seconds",
    )


def acceptance_by_level(rows: Sequence[Summary]) -> list[AnyPanel]:
    """The share of judged drafted tokens that each member accepts; empty if none judges, or with trees."""
    judging = [row for row in rows if any(level.judged for level in row.levels) and not row.levels[-1].trees]
    if not judging:
        return []
    return [
        _by_member(
            judging,
            lambda level: level.accepted / level.judged if level.judged else None,
            title="Drafted tokens that each member keeps",
            x_label="member that judges",
            value_label="share of what it is given",
        )
    ]


def _by_member(
    rows: Sequence[Summary],
    figure: Callable[[LevelSummary], float | None],
    *,
    title: str,
    x_label: str,
    value_label: str,
) -> HeatMap:
    """A figure of each run by member, whose pools may differ; members of which no run has it are left out."""
    found = [{level.name: figure(level) for level in row.levels} for row in rows]
    known = [name for name in dict.fromkeys(chain(*found)) if any(own.get(name) is not None for own in found)]
    return HeatMap(
        title=title,
        x_label=x_label,
        y_label="",
        columns=tuple(known),
        rows=tuple(row.policy for row in rows),
        values=tuple(tuple(map(own.get, known)) for own in found),
        value_label=value_label,
        style=".0%",
    )


def waterfalls(policies: Mapping[str, Waterfall | None]) -> list[AnyPanel]:
    """From the speed-up of perfect acceptance at no cost down to the actual one, for the first policies."""
    known = [(policy, found) for policy, found in policies.items() if found is not None]
    return [
        Spans(
            title=f"Where the gain of {policy} goes",
            x_label="speed-up over the target alone",
            rows=("perfect", *LOSSES, "speed-up"),
            spans=tuple(_falls(found)),
            kinds=("speed-up", "lost", "gained"),
            style=".2f",
        )
        for policy, found in known[:MOST_WATERFALLS]
    ]


def _falls(found: Waterfall) -> Iterable[Span]:
    yield Span(0, 0.0, found.perfect, "speed-up")
    left = found.perfect
    for row, loss in enumerate(LOSSES, start=1):
        after = left - found.losses[loss]
        yield Span(row, min(left, after), max(left, after), "lost" if after <= left else "gained")
        left = after
    yield Span(len(LOSSES) + 1, 0.0, found.speed_up, "speed-up")


def quality_against_speed(rows: Sequence[Summary], speeds: Mapping[str, float], unit: str) -> list[AnyPanel]:
    """Speed by how often a text leaves the target's own, a mark for each policy; empty without a lossy one."""
    known = [
        (row.policy, row.quality.divergences_per_1000)
        for row in rows
        if row.quality is not None and row.quality.divergences_per_1000 is not None
    ]
    if not any(row.quality is not None and row.quality.lossy for row in rows) or not known:
        return []
    return [
        Panel(
            title="Quality against speed",
            x_label="divergences from the target's own text, per 1,000 tokens",
            y_label=unit,
            kind="scatter",
            series=tuple(Series(name=policy, x=(rate,), y=(speeds[policy],)) for policy, rate in known),
        )
    ]


def speed_ups_by_tag(by_tag: ByTag) -> list[HeatMap]:
    """Speed-up by policy and tag; empty where the target alone is unknown."""
    found = {policy: by_tag.speed_ups(policy) for policy in by_tag.policies}
    known = {policy: speed_ups for policy, speed_ups in found.items() if speed_ups is not None}
    if not known:
        return []
    tags, policies = by_tag.tags, list(known)
    return [
        HeatMap(
            title="Speed-up by tag",
            x_label="framed: the best of a tag, hatched: slower than the target alone",
            y_label="",
            columns=tuple(tag or "no tag" for tag in tags),
            rows=tuple(policies),
            values=tuple(tuple(known[policy][tag] for tag in tags) for policy in policies),
            value_label="speed-up over the target alone",
            marked=frozenset(
                (max(range(len(policies)), key=lambda place: known[policies[place]][tag]), column)
                for column, tag in enumerate(tags)
            ),
            least=1.0,
        )
    ]


def regrets(regret: Regret) -> Ranking:
    """Seconds per token over those of the oracle, the least first."""
    figures = {
        policy: (100 * over, None) for policy, over in sorted(regret.over_reference.items(), key=lambda one: one[1])
    }
    title = f"Seconds per token over {regret.reference}"
    return ranking(title, figures, reference=0.0, style="+.1f", unit="%")


def distributions(title: str, seconds: Mapping[str, NDArray[np.float64]]) -> list[AnyPanel]:
    """The share of times that are at most x, by name, in ms where all are short; empty without any times."""
    shares = np.linspace(0.0, 1.0, QUANTILES)
    known = {name: np.quantile(own, shares) for name, own in seconds.items() if len(own)}
    if not known:
        return []
    least, most = (pick(float(own[end]) for own in known.values()) for pick, end in ((min, 0), (max, -1)))
    unit, each = ("ms", 1e3) if most < MOST_IN_MS else ("s", 1.0)
    series = tuple(
        Series(name=name, x=tuple((each * own).tolist()), y=tuple((100 * shares).tolist()))
        for name, own in known.items()
    )
    wide = least > 0 and most > 20 * least
    return [Panel(title=title, x_label=unit, y_label="% of requests at most", series=series, log_x=wide)]


def over_time(name: str, at_s: NDArray[np.float64], values: NDArray[np.float64]) -> Series:
    """Values, each valid from its instant on; of many instants the largest in each of equal spans."""
    if len(at_s) <= MOST_INSTANTS:
        return Series(name=name, x=tuple(at_s.tolist()), y=tuple(map(float, values.tolist())))
    edges = np.linspace(at_s[0], at_s[-1], MOST_INSTANTS + 1)[:-1]
    starts = np.searchsorted(at_s, edges, side="right") - 1  # the value at a span's begin belongs to it
    most = np.maximum.reduceat(values, starts)
    most[:-1] = np.maximum(most[:-1], values[starts[1:]])  # and so does the value at its end
    return Series(name=name, x=tuple(edges.tolist()), y=tuple(most.astype(float).tolist()))


def ranking(
    title: str,
    figures: Mapping[str, tuple[float, tuple[float, float] | None]],
    *,
    filled: Iterable[str] = (),
    told: str = "",
    bars: str = INTERVAL,
    reference: float | None = None,
    style: str = ".2f",
    unit: str = "",
) -> Ranking:
    """Names with their figures; `bars` describes intervals, `told` the marks in `filled`."""
    names = list(figures)
    marks = frozenset(names.index(name) for name in filled)
    known = any(bounds is not None for _, bounds in figures.values())
    return Ranking(
        title=title,
        x_label="; ".join([*([bars] if known else []), *([told] if marks else [])]),
        names=tuple(names),
        values=tuple(value for value, _ in figures.values()),
        bounds=tuple(bounds for _, bounds in figures.values()),
        filled=marks,
        reference=reference,
        style=style,
        unit=unit,
    )


Windows = Mapping[str, int]  # by member
Cells = Sequence[tuple[str | None, int]]  # (chain or None, batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptFigures:
    """Figures of chains by batch, as panels."""

    chains: Mapping[str, Windows]  # by chain
    batches: Sequence[int]
    # of a chain at a batch, with its interval; None if it was not run there
    figure: Callable[[str, int], tuple[float, Interval | None] | None]
    best: Mapping[int, str]  # chain by batch
    unit: str
    least: float | None  # below it a figure is a loss; None: unknown
    bars: str  # what intervals are over

    def panels(self) -> list[AnyPanel]:
        """Windows by batch, or by the window of another member; chains that form no grid as a ranking."""
        found: list[AnyPanel] = []
        for members in dict.fromkeys(tuple(windows) for windows in self.chains.values()):
            chains = {name: windows for name, windows in self.chains.items() if tuple(windows) == members}
            varied = [one for one in members if len({windows[one] for windows in chains.values()}) > 1]
            first = next(iter(chains.values()))
            shape = "/".join([*(f"{one}:{'window' if one in varied else first[one]}" for one in members), "target"])
            if len(varied) == 1 and len(self.batches) > 1:
                found.append(self._by_batch(chains, varied[0], shape))
            elif len(varied) == 1:
                found.append(self._by_window(chains, varied[0], shape))
            elif len(varied) == 2:
                found += [self._by_windows(chains, varied, shape, batch) for batch in self.batches]
            else:
                found += [self._ranked(chains, shape, batch) for batch in self.batches]
        return found

    def _at(self, batch: int) -> str:
        return f", batch {batch:,}" if len(self.batches) > 1 else ""

    def _value(self, chain: str | None, batch: int) -> float | None:
        found = None if chain is None else self.figure(chain, batch)
        return None if found is None else found[0]

    def _map(self, title: str, member: str, y_label: str, columns: Sequence[int], rows: Mapping[str, Cells]) -> HeatMap:
        """A heat map of cells by row name."""
        return HeatMap(
            title=title,
            x_label=f"window of {member}, tokens",
            y_label=y_label,
            columns=tuple(map(str, columns)),
            rows=tuple(rows),
            values=tuple(tuple(self._value(*cell) for cell in row) for row in rows.values()),
            value_label=self.unit,
            marked=frozenset(
                (row, column)
                for row, cells in enumerate(rows.values())
                for column, (chain, batch) in enumerate(cells)
                if chain == self.best[batch]
            ),
            least=self.least,
        )

    def _by_batch(self, chains: Mapping[str, Windows], member: str, shape: str) -> HeatMap:
        by_window = {windows[member]: name for name, windows in chains.items()}
        columns = sorted(by_window)
        rows = {f"{batch:,}": [(by_window[window], batch) for window in columns] for batch in self.batches}
        return self._map(shape, member, "requests at a time", columns, rows)

    def _by_windows(self, chains: Mapping[str, Windows], members: Sequence[str], shape: str, batch: int) -> HeatMap:
        one, other = members
        names = {(windows[other], windows[one]): name for name, windows in chains.items()}
        columns, lines = (sorted({windows[member] for windows in chains.values()}) for member in (one, other))
        rows = {str(line): [(names.get((line, column)), batch) for column in columns] for line in lines}
        return self._map(f"{shape}{self._at(batch)}", one, f"window of {other}, tokens", columns, rows)

    def _by_window(self, chains: Mapping[str, Windows], member: str, shape: str) -> Panel:
        (batch,) = self.batches
        points = sorted((windows[member], self.figure(name, batch)) for name, windows in chains.items())
        known = [(window, *found) for window, found in points if found is not None]
        ends = [interval.bounds for _, _, interval in known if interval is not None]
        sure = len(ends) == len(known)
        series = Series(
            name=shape,
            x=tuple(float(window) for window, _, _ in known),
            y=tuple(value for _, value, _ in known),
            ends=tuple(ends) if sure else None,
        )
        x_label = f"window of {member}, tokens" + f" ({self.bars})" * sure
        return Panel(title=shape, x_label=x_label, y_label=self.unit, series=(series,))

    def _ranked(self, chains: Mapping[str, Windows], shape: str, batch: int) -> Ranking:
        figures = {name: found for name in chains if (found := self.figure(name, batch)) is not None}
        names = sorted(figures, key=lambda name: -figures[name][0])
        more = f", {MOST_CHAINS} fastest of {len(names)}" if len(names) > MOST_CHAINS else ""
        shown = {}
        for name in names[:MOST_CHAINS]:
            value, interval = figures[name]
            shown[name] = value, None if interval is None else interval.bounds
        best = [name for name in shown if name == self.best[batch]]
        title = f"{self.unit[:1].upper()}{self.unit[1:]}, {shape}{self._at(batch)}{more}"
        told = "filled: the fastest of all chains"
        return ranking(title, shown, filled=best, told=told, bars=self.bars, reference=self.least)


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
        title="Error of total seconds: median over tags, their range as bars",
        x_label="",
        y_label="simulated over measured - 1, %",
        kind="bar",
        categories=tuple(policies),
        series=tuple(_errors(name, some, policies) for name, some in by_batch),
    )
    return seconds, errors


def _errors(name: str, cells: Sequence[Cell], policies: Sequence[str]) -> Series:
    """Errors by batch: the median over tags, and their range."""
    of_policy = [[100 * cell.error for cell in cells if cell.policy == policy] for policy in policies]
    known = [(place, errors) for place, errors in enumerate(of_policy) if errors]
    return Series(
        name=name,
        x=tuple(float(place) for place, _ in known),
        y=tuple(median(errors) for _, errors in known),
        ends=tuple((min(errors), max(errors)) for _, errors in known),
    )
