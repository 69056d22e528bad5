"""Simulated figures of a run beside observed ones: errors, and whether each lies within a bound."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...runs.observed.meta import ObservedRun
from ...runs.serving.log import ServingLog
from ..serving.metrics import metrics_of
from ..serving.slo.promises import Promises
from ..serving.validation import FIGURES, LATENCIES, PARTS, THROUGHPUT, figures_of
from ..tables.grid import Grid, shown, table
from .figures import observed_figures

DURATION = "duration_s"
TAIL = ("p90", "p99")
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCell:
    """One figure in both worlds.

    Attributes:
        name: of the figure, as `ttft_s_p90`.
        simulated, observed: seconds, or tokens a second; None where a world has none.
        bound: largest size of the relative error that passes, > 0.
    """

    name: str
    simulated: float | None
    observed: float | None
    bound: float

    @property
    def error(self) -> float | None:
        """Simulated over observed, less 1; None where a world has none."""
        return None if self.simulated is None or not self.observed else self.simulated / self.observed - 1

    @property
    def within(self) -> bool | None:
        """Whether the error is within the bound; None where there is none."""
        return None if self.error is None else abs(self.error) <= self.bound

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        own = {"name": self.name, "simulated": self.simulated, "observed": self.observed, "bound": self.bound}
        return own | {"error": self.error, "within": self.within}


def compared(run: ObservedRun, log: ServingLog, *, mean_bound: float, tail_bound: float) -> tuple[ObservedCell, ...]:
    """The cells of a run.

    Args:
        run: that was observed, only with requests that were replayed.
        log: of its replay.
        mean_bound: of means, medians, throughput and duration.
        tail_bound: of `TAIL`.
    """
    simulated = figures_of(log) | {DURATION: metrics_of(log, Promises()).duration_s}
    observed = _observed(run)
    return tuple(
        ObservedCell(
            name=name,
            simulated=simulated.get(name),
            observed=observed.get(name),
            bound=tail_bound if name.rpartition("_")[2] in TAIL else mean_bound,
        )
        for name in (*FIGURES, DURATION)
    )


def cells_table(cells: Sequence[ObservedCell], title: str) -> Grid:
    """A line for each figure."""
    return table([_row(cell) for cell in cells], texts=("verdict",), title=title)


def verdict(cells: Sequence[ObservedCell]) -> str:
    """How many figures are within their bounds, and which are not, in one line."""
    judged = [cell for cell in cells if cell.within is not None]
    beyond = [cell for cell in judged if not cell.within]
    worst = ", ".join(f"{_heading(cell.name)} {cell.error:+.1%}" for cell in beyond)
    told = f"{len(judged) - len(beyond)} of {len(judged)} figures are within their bounds"
    return f"{told}; beyond: {worst}" if beyond else told


def _observed(run: ObservedRun) -> Mapping[str, float | None]:
    found = observed_figures(run)
    latencies = {
        f"{latency}_{part}": None if (spread := getattr(found, latency)) is None else getattr(spread, part)
        for latency in LATENCIES
        for part in PARTS
    }
    return latencies | {THROUGHPUT: found.output_tokens_per_s, DURATION: found.duration_s}


def _row(cell: ObservedCell) -> dict[str, str]:
    words = UNKNOWN if cell.within is None else "within" if cell.within else "beyond"
    return {
        "figure": _heading(cell.name),
        "simulated": _shown(cell, cell.simulated),
        "observed": _shown(cell, cell.observed),
        "error": shown(cell.error, "+.1%", unknown=UNKNOWN),
        "bound": f"{cell.bound:.1%}",
        "verdict": words,
    }


def _heading(name: str) -> str:
    if name == THROUGHPUT:
        return "tokens/s"
    if name == DURATION:
        return "total s"
    latency, _, part = name.rpartition("_s_")
    return f"{latency.upper()} {part}, ms"


def _shown(cell: ObservedCell, figure: float | None) -> str:
    if figure is None:
        return UNKNOWN
    if cell.name in {THROUGHPUT, DURATION}:
        return f"{figure:,.2f}"
    return f"{1e3 * figure:,.2f}"
