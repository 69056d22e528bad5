"""Runs of either world as one timeline that Perfetto shows: `paceline timeline`."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError, check_within, counted
from ..reports.tables import Grid, Printed, table
from ..reports.timeline import (
    OBSERVED,
    SUFFIXES,
    TimelineRun,
    Window,
    events_of_log,
    events_of_observed,
    events_of_serving,
    write_timeline,
)
from ..runs.log import RunLog, check_run_folder, read_run_log
from ..runs.observed import ObservedRun, is_observed, read_observed
from ..runs.serving import ServingLog, read_serving
from ..traces.folder import META, check_outside, kind_of
from .options import TimelineOptions, checked, takes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Timeline(Printed):
    """What was written."""

    path: Path
    num_bytes: int
    runs: tuple[dict[str, Any], ...]  # of each its name and world, and counts of what the file holds of it

    def tables(self) -> Sequence[Grid]:
        rows = [
            {
                "run": row["run"],
                "world": row["world"],
                "requests": f"{row['requests']:,}",
                "operations": "-" if row["operations"] is None else f"{row['operations']:,}",
                "events": f"{row['events']:,}",
            }
            for row in self.runs
        ]
        return (table(rows, texts=["world"]),)

    def lines(self) -> Sequence[str]:
        lacking = [row["run"] for row in self.runs if row["operations"] is None and row["world"] != OBSERVED]
        notes = [f"{name} kept no operations (simulate --events): requests and counters alone" for name in lacking]
        return [*notes, f"{self.path}: {ceil(self.num_bytes / 1e3):,} kB; open it at https://ui.perfetto.dev"]

    def to_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "bytes": self.num_bytes, "runs": self.to_dicts()}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each run."""
        return list(self.runs)


@takes(TimelineOptions)
def timeline(
    runs: str | Path | Sequence[str | Path],
    out: str | Path,
    **options: Any,  # noqa: ANN401 - see `TimelineOptions`
) -> Timeline:
    """Write runs side by side as one timeline in Chrome's trace-event format.

    Args:
        runs: folders that `simulate --out`, `run --out`, `compare --log` or `observe --out` wrote.
        out: the file, which ends in .json or .json.gz; an existing one is replaced.
        options: see `TimelineOptions`.

    Raises:
        ArgumentError: a bad argument.
        TraceFormatError: a folder that is no valid run.
    """
    asked = checked(TimelineOptions, options)
    path = Path(out)
    check_timeline(path)
    from_s, until_s = asked.from_s, inf if asked.until_s is None else asked.until_s
    check_within("`from_s`", from_s, "[0, 1e9]")
    if not until_s > from_s:
        raise ArgumentError(f"`until_s` must be > `from_s` {from_s:g}, got {until_s:g}")
    folders = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    if not folders:
        raise ArgumentError("`runs` must name at least one folder, got none")
    events = {name: events_of(read_run(folder)) for name, folder in zip(names_of(folders), folders, strict=True)}
    window = Window.of(from_s, until_s)
    counts = write_timeline(events, path, window)
    rows = []
    for name, run in events.items():
        requests, operations = run.counted(window)
        told = {"requests": requests, "operations": operations, "events": counts[name]}
        rows.append({"run": name, "world": run.world, **told})
    return Timeline(path=path, num_bytes=path.stat().st_size, runs=tuple(rows))


def check_timeline(path: Path) -> None:
    """Raise ArgumentError for a file of another kind, TraceFormatError for one within a run."""
    if not path.name.endswith(SUFFIXES):
        raise ArgumentError(f"`out` must end in {' or '.join(SUFFIXES)}, got {str(path)!r}")
    check_outside(path)


AnyRun = ServingLog | RunLog | ObservedRun


def read_run(folder: Path) -> AnyRun:
    """A run of either world; raises TraceFormatError for a folder that is no valid one."""
    check_run_folder(folder, "a run")
    if is_observed(folder):
        return read_observed(folder)
    # The `kind` in a run log is the recording's.
    is_served = (folder / META).is_file() and kind_of(folder) == "serving"
    return read_serving(folder) if is_served else read_run_log(folder)


def events_of(run: AnyRun) -> TimelineRun:
    """What happened in a run."""
    if isinstance(run, ObservedRun):
        return events_of_observed(run)
    return events_of_serving(run) if isinstance(run, ServingLog) else events_of_log(run)


def names_of(folders: Sequence[Path], argument: str = "runs") -> list[str]:
    """The last part of each folder, or enough of the path to be unique; raises ArgumentError for a repeated one."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        again = next(name for name in names if names.count(name) > 1)
        raise ArgumentError(
            f"`{argument}` must be different folders, got {again} {counted(names.count(again), 'time')}"
        )
    return names
