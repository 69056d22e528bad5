"""The figures of serving runs: what `paceline metrics` does."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from ...arguments import ArgumentError, check_within
from ...reports.serving.metrics import metrics_of
from ...reports.serving.over_seeds import MeasuredRun, seed_rows
from ...reports.serving.report import ServingReport
from ...reports.serving.slo.promises import Promises, by_class
from ...reports.serving.slo.service_levels import ServiceLevels
from ...reports.tables.printed import flat_rows
from ...runs.serving.log import ServingLog
from ...runs.serving.store import read_serving

Run = ServingLog | str | Path
# Seconds by name of what is promised to all, and such seconds by class.
Promised = Mapping[str, float | Mapping[str, float]]


def metrics(runs: Run | Sequence[Run], *, slo: Promised | None = None) -> ServingReport:
    """Latencies, throughput, goodput, memory and acceptance of serving runs (docs/serving-metrics.md defines them).

    Args:
        runs: one or several: folders that `paceline simulate --out` wrote, or logs. Those that differ in their seed
            alone become one row with 95% intervals.
        slo: the longest times that meet a promise, in seconds, by name: `ttft`, `tpot`, `e2e`, `queue`. By the name of
            a class of requests, those of that class: `{"chat": {"ttft": 0.5}, "e2e": 60}`.

    Raises:
        ArgumentError: no run, a promise that is none, or one to a class that no request of the runs has.
        TraceFormatError: a folder that holds no sound run; one line.
        ValueError: one setting twice at the same seed.
    """
    given = [runs] if isinstance(runs, ServingLog | str | Path) else list(runs)
    if not given:
        raise ArgumentError("`runs` must hold one, got none")
    promised = promises(slo or {})
    logs = [
        (f"run {number + 1}", run) if isinstance(run, ServingLog) else (str(run), read_serving(Path(run)))
        for number, run in enumerate(given)
    ]
    refuse_unknown_classes(promised, {name for _, log in logs for name in by_class(log)})
    measured = [measured_run(log, name, promised) for name, log in logs]
    return ServingReport(rows=seed_rows(measured), promised=promised)


def measured_run(log: ServingLog, name: str, promised: Promises) -> MeasuredRun:
    """The figures of a run, and what it is called in remarks."""
    found = metrics_of(log, promised)
    (flat,) = flat_rows([found.to_json()])
    return MeasuredRun(folder=name, meta=log.meta, metrics=found, flat=flat)


def promises(slo: Promised) -> Promises:
    """Service levels, those of all and those by class; raises ArgumentError for a name or a time that is none."""
    of_all = {name: seconds for name, seconds in slo.items() if not isinstance(seconds, Mapping)}
    of_classes = {name: levels for name, levels in slo.items() if isinstance(levels, Mapping)}
    return Promises(
        others=_levels(of_all, ""), classes={name: _levels(levels, f"{name}:") for name, levels in of_classes.items()}
    )


def refuse_unknown_classes(promised: Promises, known: Collection[str]) -> None:
    """Raises ArgumentError for a promise to a class that is not among `known`; "" among them is no class."""
    for name in promised.classes:
        if name not in known or not name:
            classes = ", ".join(sorted(filter(None, known))) or "none"
            raise ArgumentError(f"`slo` must name a class of the requests ({classes}), got {name!r}")


def _levels(slo: Mapping[str, float], before: str) -> ServiceLevels:
    known = [field.name for field in fields(ServiceLevels)]
    for name, seconds in slo.items():
        if name not in known:
            raise ArgumentError(f"`slo` must name one of {', '.join(known)}, got {before + name!r}")
        check_within(f"`slo` {before}{name}", seconds, "(0, inf)")
    return ServiceLevels(**slo)
