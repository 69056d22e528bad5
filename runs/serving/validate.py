"""What must hold of the log of a serving run, whether an engine has just told it or a file holds it."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...traces.errors import TraceFormatError
from ...traces.workloads.exact_seconds import MOST_PS
from ...traces.workloads.options import MOST_COUNT
from ..log import Columns
from .gap_sums import exact_dot, total_gaps, total_ps
from .log import UNKNOWN, ServingLog

GAPS, PREEMPTIONS, REQUESTS, SERIES = (f"{name}.parquet" for name in ("gaps", "preemptions", "requests", "series"))


class _Table:
    """Rules of one file's columns, each broken by the first row that does."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self._path = path
        self._columns = columns

    def require(self, holds: NDArray[Any], field: str, rule: str) -> None:
        """Raise TraceFormatError unless a rule holds in every row; `holds` is of booleans."""
        if not holds.all():
            row = int(np.argmin(holds))
            value = self._columns[field][row]
            raise TraceFormatError(self._path, field, f"{rule} (row {row})", _plain(value))

    def require_within(self, field: str, least: int, most: int) -> None:
        """Raise TraceFormatError unless a column lies in [least, most]."""
        values = self._columns[field]
        within = (values >= least) & (values <= most)
        self.require(within, field, f"must be in [{least}, {most}]")


def _plain(value: Any) -> object:  # noqa: ANN401 - whatever a column holds
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def check_log(log: ServingLog, path: Path, *, ids_are_unique: bool = False) -> None:
    """Refuse a log whose parts do not go together.

    Args:
        log: all of it.
        path: the folder that errors name.
        ids_are_unique: those of requests, as whoever gathered them made sure of.

    Raises:
        TraceFormatError: the first rule that is broken, with its file, field and row.
    """
    if log.meta.ended_at_ps > MOST_PS:
        raise TraceFormatError(path / "meta.json", "ended_at_ps", f"must be at most {MOST_PS}", log.meta.ended_at_ps)
    if not ids_are_unique:
        first = _first_of_each(log.requests["request_id"].tolist())
        _Table(path / REQUESTS, log.requests).require(first, "request_id", "must be unique")
    _check_requests(log, path / REQUESTS)
    _check_times(log, path / REQUESTS)
    _check_tokens(log, path / REQUESTS)
    _check_preemptions(log, path / PREEMPTIONS)
    _check_series(log, path / SERIES)
    _check_gaps(log, path / GAPS)


def _check_requests(log: ServingLog, path: Path) -> None:
    table, columns = _Table(path, log.requests), log.requests
    table.require(columns["request_id"] != "", "request_id", "must not be empty")
    table.require_within("replica", 0, len(log.meta.replicas) - 1)
    table.require_within("prompt_tokens", 1, MOST_COUNT)
    table.require_within("output_tokens", 1, MOST_COUNT)
    cached = columns["cached_tokens"]
    if cached.shape[1:] != (len(log.meta.members),):
        raise TraceFormatError(path, "cached_tokens", f"must hold {len(log.meta.members)} each", cached.shape[1:])
    fits = (cached >= 0) & (cached <= columns["prompt_tokens"][:, None])
    table.require(np.asarray(fits.all(axis=1)), "cached_tokens", "must be in [0, prompt_tokens]")


def _first_of_each(names: list[str]) -> NDArray[np.bool_]:
    """Where a name stands for the first time."""
    if len(set(names)) == len(names):
        return np.ones(len(names), dtype=bool)
    _, places = np.unique(names, return_index=True)
    return np.isin(np.arange(len(names)), places)


def _check_times(log: ServingLog, path: Path) -> None:
    table, columns = _Table(path, log.requests), log.requests
    table.require_within("arrived_at_ps", 0, log.meta.ended_at_ps)
    for field in ("scheduled_at_ps", "first_token_at_ps", "ended_at_ps"):
        table.require_within(field, UNKNOWN, log.meta.ended_at_ps)
    arrived, scheduled, first, ended = (
        columns[f"{what}_at_ps"] for what in ("arrived", "scheduled", "first_token", "ended")
    )
    rejected = columns["rejected"] != ""
    table.require((scheduled == UNKNOWN) | (scheduled >= arrived), "scheduled_at_ps", "must not be before the arrival")
    table.require(
        (first == UNKNOWN) | ((scheduled != UNKNOWN) & (first >= scheduled) & ~rejected),
        "first_token_at_ps",
        "must not be before the request was scheduled, and not be there if it was rejected",
    )
    after = np.where(rejected, np.maximum(arrived, scheduled), first)
    table.require(
        (ended == UNKNOWN) | ((ended >= after) & (after != UNKNOWN)),
        "ended_at_ps",
        "must not be before the first token",
    )
    table.require(~rejected | (ended != UNKNOWN), "ended_at_ps", "must be there of a rejected request")
    if not log.meta.stopped:
        table.require(ended != UNKNOWN, "ended_at_ps", "must be there where the run was not stopped")


def _check_tokens(log: ServingLog, path: Path) -> None:
    table, columns = _Table(path, log.requests), log.requests
    emitted, asked = columns["emitted_tokens"], columns["output_tokens"]
    begun = columns["first_token_at_ps"] != UNKNOWN
    table.require(emitted <= asked, "emitted_tokens", "must be at most output_tokens")
    table.require(~log.finished | (emitted == asked), "emitted_tokens", "must be output_tokens of a finished request")
    table.require((emitted > 0) == begun, "emitted_tokens", "must be > 0 with a first token, else 0")


def _check_preemptions(log: ServingLog, path: Path) -> None:
    table, columns = _Table(path, log.preemptions), log.preemptions
    table.require_within("request", 0, len(log.requests["request_id"]) - 1)
    scheduled = log.requests["scheduled_at_ps"][columns["request"]]
    table.require(scheduled != UNKNOWN, "request", "must have been scheduled")
    within = (columns["at_ps"] >= scheduled) & (columns["at_ps"] <= log.meta.ended_at_ps)
    table.require(within, "at_ps", "must be between the request's first step and the end of the run")


def _check_series(log: ServingLog, path: Path) -> None:
    table, columns = _Table(path, log.series), log.series
    table.require_within("replica", 0, len(log.meta.replicas) - 1)
    table.require_within("at_ps", 0, log.meta.ended_at_ps)
    owner, at_ps = columns["replica"], columns["at_ps"]
    same = np.diff(owner, prepend=owner[:1]) == 0
    table.require(np.diff(owner, prepend=owner[:1]) >= 0, "replica", "must be in order")
    table.require(~same | (np.diff(at_ps, prepend=at_ps[:1]) >= 0), "at_ps", "must be in order for each replica")
    totals = log.meta.replicas
    for field in ("running", "waiting"):
        most = np.array([getattr(replica, f"most_{field}") for replica in totals])
        within = (columns[field] >= 0) & (columns[field] <= most[owner])
        table.require(within, field, f"must be in [0, most_{field}]")
    used = columns["used_blocks"]
    if used.shape[1:] != (len(log.meta.members),):
        raise TraceFormatError(path, "used_blocks", f"must hold {len(log.meta.members)} each", used.shape[1:])
    most = np.array([[member.most_blocks for member in replica.members] for replica in totals])
    fits = np.asarray(((used >= 0) & (used <= most[owner])).all(axis=1))
    table.require(fits, "used_blocks", "must be in [0, most_blocks]")


def _check_gaps(log: ServingLog, path: Path) -> None:
    table, columns = _Table(path, log.gaps), log.gaps
    table.require_within("count", 1, MOST_COUNT)
    table.require_within("rows", 1, MOST_COUNT)
    table.require_within("first_ps", 0, MOST_PS)
    table.require_within("increment_ps", -MOST_PS, MOST_PS)
    later, rule = columns["count"] - 1, f"must leave the last gap in [0, {MOST_PS}]"
    # First in floats, so that the whole numbers cannot run over.
    table.require(np.abs(columns["increment_ps"] * later.astype(np.float64)) <= 2.0**62, "increment_ps", rule)
    last = columns["first_ps"] + columns["increment_ps"] * later
    table.require((last >= 0) & (last <= MOST_PS), "increment_ps", rule)
    _check_gap_sums(log, path)


def _check_gap_sums(log: ServingLog, path: Path) -> None:
    """Outputs of a request are at most its tokens, and the gaps of one that finished fill the time between its ends."""
    most = int(np.maximum(log.requests["emitted_tokens"] - 1, 0).sum())
    found = total_gaps(log.gaps)
    if found > most:
        raise TraceFormatError(path, "count", f"must add up to at most {most} gaps, as tokens were emitted", found)
    begun = log.requests["first_token_at_ps"] != UNKNOWN
    finished = log.finished
    lasted = (log.requests["ended_at_ps"] - log.requests["first_token_at_ps"])[finished]
    filled = exact_dot(lasted, np.ones_like(lasted))
    if begun.sum() == finished.sum() and total_ps(log.gaps) != filled:
        rule = f"must add up to the {filled} ps between first and last tokens"
        raise TraceFormatError(path, "first_ps", rule, total_ps(log.gaps))
