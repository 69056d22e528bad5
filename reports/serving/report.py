"""Serving runs side by side, ready to be printed, shown in a notebook, or taken on as rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...counted import counted
from ...traces.workloads.exact_seconds import PS_PER_S
from ..tables.grid import Grid
from ..tables.printed import Printed, flat_rows
from .over_seeds import SeedRow
from .slo.class_table import class_table
from .slo.promises import Promises
from .tables import latency_table, load_table, member_table, names_of, served_table
from .what_was_asked import what_was_asked


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServingReport(Printed):
    """The figures of one or several runs; prints as `paceline metrics` does.

    Attributes:
        rows: one per setting, its seeds together.
        promised: service levels by class that goodput asks for.
        noted: whether the notes of runs are printed; False where they stand elsewhere.
    """

    rows: tuple[SeedRow, ...]
    promised: Promises
    noted: bool = True

    def tables(self) -> Sequence[Grid]:
        """What was served, classes if there are any, latencies, load, and members."""
        served = served_table(self.rows, promised=self.promised.any, title=self._title(), remarks=self._remarks())
        classes = class_table([(names_of(self.rows, row), row) for row in self.rows], promised=self.promised.any)
        by_class = [] if classes is None else [classes]
        return [served, *by_class, latency_table(self.rows), load_table(self.rows), member_table(self.rows)]

    def lines(self) -> Sequence[str]:
        """None: tables say it all."""
        return []

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/serving-metrics.md)."""
        return {**self.promised.to_json(), "rows": [row.to_json() for row in self.rows]}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each run; an object becomes a column for each of its keys, `ttft_s_mean`."""
        rows = []
        for row in self.rows:
            setting = {name: getattr(row.about, name) for name in ("policy", "workload", "cluster")}
            for run in row.to_json()["runs"]:
                del run["rejected_for"]  # reasons are texts, which make no columns
                rows.append({**setting, **run})
        return flat_rows(rows)

    def _title(self) -> str:
        about = self.rows[0].about
        same = {name: {getattr(row.about, name) for row in self.rows} for name in ("workload", "cluster")}
        parts = [f"{name} {getattr(about, name)}" for name, values in same.items() if len(values) == 1]
        if self._asked_alike:
            parts += what_was_asked(about.setting)
        durations = sorted(run.metrics.duration_s for row in self.rows for run in row.runs)
        parts.append(
            f"{durations[0]:,.3f} s" if len(durations) == 1 else f"{durations[0]:,.3f} to {durations[-1]:,.3f} s"
        )
        return "; ".join([*parts, *filter(None, [self.promised.in_words()])])

    @property
    def _asked_alike(self) -> bool:
        """Whether the title can say what was asked of all runs."""
        return len({str(what_was_asked(row.about.setting)) for row in self.rows}) == 1

    def _remarks(self) -> list[str]:
        runs = [run for row in self.rows for run in row.runs]
        notes = [run.meta.about.notes if self.noted else () for run in runs]
        common = [note for note in notes[0] if all(note in others for others in notes)]
        remarks = list(common)
        for run, own in zip(runs, notes, strict=True):
            metrics = run.metrics
            asked = [] if self._asked_alike else what_was_asked(run.meta.about.setting)
            remarks += [f"{run.folder}: {note}" for note in (*asked, *own) if note not in common]
            left_out = [
                *([f"{metrics.unfinished:,} unfinished"] if metrics.unfinished else []),
                *(f"{count:,} rejected ({reason})" for reason, count in metrics.rejected_for.items()),
            ]
            if left_out:
                requests = counted(metrics.requests, "request")
                remarks.append(f"{run.folder}: of {requests} {', '.join(left_out)}: in no latency but ITL")
            moved = (metrics.transfers, metrics.host)
            remarks += [f"{run.folder}: {one.words}" for one in moved if one is not None]
            if run.meta.stopped:
                at_s = run.meta.ended_at_ps / PS_PER_S
                remarks.append(f"{run.folder}: partial, stopped at {at_s:,.3f} s ({run.meta.stopped})")
        if any(len(row.runs) > 1 for row in self.rows):
            remarks.append("±: 95% interval of the mean over seeds")
        return list(dict.fromkeys(remarks))
