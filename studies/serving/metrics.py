"""The figures of serving runs: what `paceline metrics` does."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from ...arguments import ArgumentError
from ...reports.serving.metrics import metrics_of
from ...reports.serving.over_seeds import MeasuredRun, seed_rows
from ...reports.serving.report import ServingReport
from ...reports.serving.service_levels import ServiceLevels
from ...reports.tables.printed import flat_rows
from ...runs.serving.log import ServingLog
from ...runs.serving.store import read_serving

Run = ServingLog | str | Path


def metrics(runs: Run | Sequence[Run], *, slo: Mapping[str, float] | None = None) -> ServingReport:
    """Latencies, throughput, goodput, memory and acceptance of serving runs (docs/serving-metrics.md defines them).

    Args:
        runs: one or several: folders that `paceline simulate --out` wrote, or logs. Those that differ in their seed
            alone become one row with 95% intervals.
        slo: the longest times that meet a promise, in seconds, by name: `ttft`, `tpot`, `e2e`, `queue`.

    Raises:
        ArgumentError: no run, or a promise that is none.
        TraceFormatError: a folder that holds no sound run; one line.
        ValueError: one setting twice at the same seed.
    """
    given = [runs] if isinstance(runs, ServingLog | str | Path) else list(runs)
    if not given:
        raise ArgumentError("`runs` must hold one, got none")
    promised = promised_levels(slo or {})
    measured = [_measured(run, number, promised) for number, run in enumerate(given)]
    return ServingReport(rows=seed_rows(measured), promised=promised)


def _measured(run: Run, number: int, promised: ServiceLevels) -> MeasuredRun:
    if isinstance(run, ServingLog):
        return measured_run(run, f"run {number + 1}", promised)
    return measured_run(read_serving(Path(run)), str(run), promised)


def measured_run(log: ServingLog, name: str, promised: ServiceLevels) -> MeasuredRun:
    """The figures of a run, and what it is called in remarks."""
    found = metrics_of(log, promised)
    (flat,) = flat_rows([found.to_json()])
    return MeasuredRun(folder=name, meta=log.meta, metrics=found, flat=flat)


def promised_levels(slo: Mapping[str, float]) -> ServiceLevels:
    """Service levels by name; raises ArgumentError for a name or a time that is none."""
    known = [field.name for field in fields(ServiceLevels)]
    unknown = [name for name in slo if name not in known]
    if unknown:
        raise ArgumentError(f"`slo` must name one of {', '.join(known)}, got {unknown[0]!r}")
    return ServiceLevels(**slo)
