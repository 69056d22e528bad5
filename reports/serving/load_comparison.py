"""Policies under load side by side, a row for each rate and policy, ready to be printed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..tables.grid import Grid, table
from ..tables.printed import Printed, flat_rows
from .best_by_rate import GOODPUT, IN_SYSTEM, Aim, Best, best_at, in_words, to_json
from .over_seeds import SeedRow
from .report import ServingReport
from .slo.class_table import class_table
from .slo.promises import Promises
from .tables import LOAD, PROMISED, Shown, cells_of, milliseconds, styled, whole
from .what_was_asked import what_was_asked

ENDED: Shown = {
    "finished": ("finished", whole),
    "rejected": ("rejected", whole),
    "unfinished": ("unfinished", whole),
}
QUICK: Shown = {
    "tokens/s": ("output_tokens_per_s", styled(",.1f")),
    "TTFT ms": ("ttft_s_mean", milliseconds),
    "p99": ("ttft_s_p99", milliseconds),
    "TPOT ms": ("tpot_s_mean", milliseconds),
    "in system ms": ("in_system_s", milliseconds),
}
STRAINED: Shown = {name: LOAD[name] for name in ("preempted", "busy")}
# One column, so that both stand in every part of a table that does not fit.
RATE_AND_POLICY = "arrivals/s: policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRate:
    """All policies at one rate.

    Attributes:
        rate: arrivals per second; None: the workload's own.
        rows: one per policy.
    """

    rate: float | None
    rows: tuple[SeedRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadComparison(Printed):
    """Policies under load; prints as `paceline compare --workload` does.

    Attributes:
        rates: rising.
        promised: service levels by class that goodput asks for.
        meta: what was compared on: workload, cluster, trace.
        remarks: what the reader of the figures has to know, a line each.
        num_missing: runs that an interrupt left out, of a rate and policy together.
    """

    rates: tuple[AtRate, ...]
    promised: Promises
    meta: dict[str, Any]
    remarks: tuple[str, ...]
    num_missing: int = 0

    @property
    def aim(self) -> Aim:
        """What the best policy is best at: goodput where something is promised."""
        return GOODPUT if self.promised.any else IN_SYSTEM

    @property
    def best(self) -> tuple[Best, ...]:
        """By rate, of those at which every policy was run."""
        whole_rates = [one for one in self.rates if len(one.rows) == max(len(other.rows) for other in self.rates)]
        found = [best_at(one.rate, one.rows, self.aim) for one in whole_rates]
        return tuple(best for best in found if best is not None)

    def tables(self, *, detail: bool = False) -> Sequence[Grid]:
        """One row per rate and policy, then by class where classes are promised; `detail`: those of `metrics` too."""
        grid = self._table()
        if not detail:
            named = [({RATE_AND_POLICY: _called(one, row)}, row) for one in self.rates for row in one.rows]
            classes = class_table(named, promised=True) if self.promised.classes else None
            return (grid,) if classes is None else (grid, classes)
        rows = tuple(row for one in self.rates for row in one.rows)
        return (grid, *ServingReport(rows=rows, promised=self.promised, noted=False).tables())

    def lines(self) -> Sequence[str]:
        """Who is best where."""
        several = any(len(one.rows) > 1 for one in self.rates)
        return in_words(self.best, self.aim) if several else ()

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/serving.md)."""
        return {
            **self.meta,
            **self.promised.to_json(),
            "rows": [{"rate": one.rate, **row.to_json()} for one in self.rates for row in one.rows],
            "best_by": self.aim.figure,
            "best": to_json(self.best),
            "conclusion": list(self.lines()),
            "remarks": list(self.remarks),
            "missing": self.num_missing,
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each run."""
        rows = []
        for one in self.rates:
            for row in one.rows:
                for run in row.to_json()["runs"]:
                    del run["rejected_for"]  # reasons are texts, which make no columns
                    rows.append({"rate": one.rate, "policy": row.about.policy, **run})
        return flat_rows(rows)

    def _table(self) -> Grid:
        best = {(found.rate, found.policy) for found in self.best}
        cells: list[dict[str, str]] = []
        bold: list[tuple[int, int | None]] = []
        ends: list[int] = []
        for one in self.rates:
            for row in one.rows:
                if (one.rate, row.about.policy) in best:
                    bold.append((len(cells), None))
                cells.append({RATE_AND_POLICY: _called(one, row)} | cells_of(row, self._shown(), ""))
            ends.append(len(cells) - 1)
        return table(cells, title=self._title(), remarks=self._remarks(), bold=bold, lines=ends)

    def _shown(self) -> Shown:
        """Without columns that say nothing: rejected and unfinished requests where there are none."""
        rows = [row for one in self.rates for row in one.rows]
        ended = {
            name: one for name, one in ENDED.items() if name == "finished" or any(row.mean(one[0]) for row in rows)
        }
        return {**ended, **QUICK, **(PROMISED if self.promised.any else {}), **STRAINED}

    def _title(self) -> str:
        parts = [f"workload {self.meta['workload']}", f"cluster {self.meta['cluster']}", f"trace {self.meta['trace']}"]
        parts += what_was_asked(self.meta["setting"])
        return "; ".join([*parts, *filter(None, [self.promised.in_words()])])

    def _remarks(self) -> list[str]:
        rows = [row for one in self.rates for row in one.rows]
        remarks = list(self.remarks)
        if any(run.metrics.unfinished for row in rows for run in row.runs):
            remarks.append(
                "unfinished requests are in no latency but the time in the system, which counts until the run ended"
            )
        if any(len(row.runs) > 1 for row in rows):
            remarks.append("±: 95% interval of the mean over seeds; at one seed all policies met the same requests")
        return remarks


def _called(at_rate: AtRate, row: SeedRow) -> str:
    rate = "own" if at_rate.rate is None else f"{at_rate.rate:g}"
    return f"{rate}: {row.about.policy}"
