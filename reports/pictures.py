"""What figures of results show: speed-ups with their intervals, windows by batch, rates, positions of drafts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from .intervals import Interval
from .panels import AnyPanel, HeatMap, Panel, Ranking, Series
from .summary import Summary

MOST_LINES = 6  # policies whose positions are drawn: more lines cannot be told apart
MOST_CHAINS = 15  # of a sweep that is no grid
INTERVAL = "bars: 95% interval over requests"


def kept_by_position(rows: Sequence[Summary]) -> list[AnyPanel]:
    """How often a round keeps the drafted token at each position; rows are fastest first. Empty where nobody drafts."""
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
    """Where the seconds of each run went; members that took none are left out."""
    members = [level.name for level in rows[0].levels]
    ran = [place for place in range(len(members)) if any(row.levels[place].duration_s for row in rows)]
    return HeatMap(
        title="Where the seconds go",
        x_label="member",
        y_label="",
        columns=tuple(members[place] for place in ran),
        rows=tuple(row.policy for row in rows),
        values=tuple(tuple(row.levels[place].share_of_seconds for place in ran) for row in rows),
        value_label="share of the seconds",
        style=".0%",
    )


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
    """Names with their figures and what `bars` says; `filled` are those of which `told` says what they are."""
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
Cells = Sequence[tuple[str | None, int]]  # a chain, None for none, and a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptFigures:
    """Figures of chains by batch, as panels."""

    chains: Mapping[str, Windows]  # by chain
    batches: Sequence[int]
    # of a chain at a batch, with its interval; None where it was not run there
    figure: Callable[[str, int], tuple[float, Interval | None] | None]
    best: Mapping[int, str]  # chain by batch
    unit: str
    least: float | None  # below it a figure is a loss; None: nobody knows

    def panels(self) -> list[AnyPanel]:
        """Windows by batch, or by the window of another member; chains that are no grid as a ranking."""
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
        """Of cells by row, which is called so."""
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
        halves = [interval.half_width for _, _, interval in known if interval is not None]
        sure = len(halves) == len(known)
        series = Series(
            name=shape,
            x=tuple(float(window) for window, _, _ in known),
            y=tuple(value for _, value, _ in known),
            error=tuple(halves) if sure else None,
        )
        x_label = f"window of {member}, tokens" + f" ({INTERVAL})" * sure
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
        return ranking(title, shown, filled=best, told="filled: the fastest of all chains", reference=self.least)
