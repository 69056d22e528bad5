"""A serving run: its metadata, its columns, their rules, and its folder.

Times are whole picoseconds since the start of the workload; sums of time are whole picoseconds times requests or
blocks, as exact as the clock. Letters: R requests, L levels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field, JsonValue, model_validator

from ..traces.errors import TraceFormatError
from ..traces.folder import Rule, StoredFolder, check_rules, read_table
from ..traces.meta import NAME_PATTERN, TITLE_PATTERN, Record, SparseRecord, Version, check_at_most
from ..traces.workloads.arrival import MOST_COUNT, MOST_PS
from . import operations as kept
from .log import Columns, check_run_folder, new_folder, row_number, within
from .operations import KeptOperations, rules_of_operations, rules_of_rows

# Runs converted to Python's numbers at a time: these take several times the memory of numpy's.
_AT_ONCE = 2**16


def total_gaps(gaps: Columns) -> int:
    """How many gaps all runs hold."""
    return exact_dot(gaps["count"], gaps["rows"])


def total_ps(gaps: Columns) -> int:
    """Picoseconds of all gaps together."""
    # The mean of a run is that of its first and its last gap, which together stay within 64 bits.
    ends = 2 * gaps["first_ps"] + gaps["increment_ps"] * (gaps["count"] - 1)
    return exact_dot(ends, gaps["count"] * gaps["rows"]) // 2


def exact_dot(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """The sum of products, exact where it outgrows 64 bits."""
    found = 0
    for start in range(0, len(one), _AT_ONCE):
        left, right = one[start : start + _AT_ONCE], other[start : start + _AT_ONCE]
        if int(np.abs(left).max()) * int(np.abs(right).max()) < 2**63 // _AT_ONCE:
            found += int(np.dot(left, right))
        else:
            found += sum(map(mul, left.tolist(), right.tolist()))
    return found


Count = Annotated[int, Field(ge=0)]
# How the steps of a replica were computed.
STEP_BY_STEP = "step by step"
CYCLES = "cycle by cycle, where nobody looks"

Title = Annotated[str, Field(pattern=TITLE_PATTERN)]


class Lookups(Record):
    """Look-ups in a member's prefix cache, and hits."""

    asked_blocks: Count = 0  # full blocks of the texts that were looked up
    found_blocks: Count = 0  # how many of those were hits
    asked_tokens: Count = 0  # tokens of the texts that were looked up, those of a last block that is not full included
    found_tokens: Count = 0  # how many of those were hits

    @model_validator(mode="after")
    def _found(self) -> "Lookups":
        for what in ("blocks", "tokens"):
            check_at_most(self, f"found_{what}", f"asked_{what}")
        return self


class MemberTotals(Record):
    """What one member of a replica did and held."""

    # KV blocks it may use; None: they are not counted, or it keeps no keys and values.
    num_blocks: Annotated[int, Field(ge=1)] | None
    most_blocks: Count  # that it used at once
    block_ps: Count  # used blocks, added up over time
    busy_ps: Count  # time of its forwards, forwards that the end of the run cuts count until then
    forwards: Count  # batched forwards it ran
    lookups: Lookups  # in its prefix cache

    @model_validator(mode="after")
    def _fits(self) -> "MemberTotals":
        if self.num_blocks is not None:
            check_at_most(self, "most_blocks", "num_blocks")
        return self


class HostTotals(Record):
    """Host memory behind the prefix caches of a replica."""

    stored: dict[str, Count]  # blocks of each member that were copied to it, by its name
    loaded: dict[str, Count]  # blocks that were read back
    dropped: dict[str, Count]  # blocks that were evicted
    most_bytes: Count  # that were used at once
    load_ps: Count  # time that loading added to steps, until the end of the run


class ReplicaTotals(Record):
    """The totals of one replica."""

    name: str = Field(pattern=NAME_PATTERN)  # unique among the replicas
    path: Title = STEP_BY_STEP  # how its steps were computed, in words; figures do not depend on it
    states: Count  # that it reported; the series holds some of them
    most_running: Count  # requests in its batch at once
    running_ps: Count  # requests in its batch, added up over time
    most_waiting: Count  # requests in its queue at once, preempted ones among them
    waiting_ps: Count  # requests in its queue, added up over time
    members: tuple[MemberTotals, ...]  # `[L]`
    host: HostTotals | None = None  # of its host memory; None where it has none


class LevelTotals(Record):
    """What one member judged in all replicas; prefills judge nothing and are not counted."""

    verifications: Count  # one per request and forward in which it judged, or wrote a token of its own
    judged: Count  # drafted tokens that it judged
    accepted: Count  # how many of those were accepted; own tokens are not among them
    own: Count  # tokens it added itself, corrections and bonuses

    @model_validator(mode="after")
    def _accepted(self) -> "LevelTotals":
        check_at_most(self, "accepted", "judged")
        check_at_most(self, "own", "verifications")
        return self


class TransferTotals(Record):
    """What crossed the link from replicas that prefill to those that decode, until the end of the run."""

    handed_over: Count  # requests
    held_ps: Count  # time from the end of a prefill until its request had blocks and a place, summed over requests
    sent: Count  # transfers that reached the link; a request whose text is in the other prefix cache needs none
    unfinished: Count = 0  # of these, those waiting at the end of the run, or cut by it
    bytes: Count  # that were sent; of a cut transfer the share of its bytes that its time until then is, rounded down
    busy_ps: Count  # time of the link for them
    queued_ps: Count  # time they waited behind others, added up
    most_queued_ps: Count  # the longest of these


class ServingAbout(SparseRecord):
    """What was run."""

    _unwritten = ("classes",)
    policy: Title  # as it was named
    workload: Title  # as it was named, rate included
    cluster: Title  # as it was named
    seed: int = 0  # of drawn acceptance and all else that is random
    notes: tuple[Title, ...] = ()  # what a reader of its figures has to know, a line each
    setting: dict[str, JsonValue] = Field(default_factory=dict)  # all other options, by name
    # of service levels, of all requests of the workload where the run was stopped; () where all had come
    classes: tuple[Title, ...] = ()


class ServingMeta(Record):
    """`meta.json` of a serving run."""

    format: Literal["paceline-serving"] = "paceline-serving"
    version: Version = 1
    kind: Literal["serving"] = "serving"
    about: ServingAbout  # what was run
    # Of the pool, in level order, the target last.
    members: tuple[Annotated[str, Field(pattern=NAME_PATTERN)], ...] = Field(min_length=1)
    replicas: tuple[ReplicaTotals, ...] = Field(min_length=1)  # in the order of their indices
    levels: tuple[LevelTotals, ...]  # `[L]`
    ended_at_ps: Count  # when the last request ended, or the run was stopped
    stopped: Title = ""  # why the run was stopped before all requests had ended; "" if it was not
    # From replicas that prefill to those that decode; None where there are none.
    transfers: TransferTotals | None = None
    sessions_ps: tuple[Count, ...] = ()  # what sessions of several requests took, of those that have ended

    @model_validator(mode="after")
    def _lengths(self) -> "ServingMeta":
        _check_unique("members", self.members)
        _check_unique("replicas", [replica.name for replica in self.replicas])
        for name, found in (("levels", self.levels), *(("members", replica.members) for replica in self.replicas)):
            if len(found) != len(self.members):
                raise ValueError(f"{name} must be one per member, {len(self.members)}, got {len(found)}")
        return self


def _check_unique(name: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise ValueError(f"names of {name} must be unique, got {list(names)}")


# The time of an event that did not happen.
UNKNOWN = -1

REQUEST_FIELDS = (
    "request_id",
    "tag",
    "slo",
    "replica",
    "prompt_tokens",
    "output_tokens",
    "emitted_tokens",
    "arrived_at_ps",
    "scheduled_at_ps",
    "first_token_at_ps",
    "ended_at_ps",
    "rejected",
    "cached_tokens",
)
PREEMPTION_FIELDS = ("request", "at_ps")
SERIES_FIELDS = ("replica", "at_ps", "running", "waiting", "used_blocks")
GAP_FIELDS = ("first_ps", "increment_ps", "count", "rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLog:
    """What happened in one serving run."""

    meta: ServingMeta  # what was run, and its sums
    # one row per request that arrived (REQUEST_FIELDS), in order of arrival. `replica` is an index into
    # `meta.replicas`; `output_tokens` were asked for and `emitted_tokens` came out; a time is UNKNOWN where the event
    # did not happen; `rejected` is the reason, "" for all others; `cached_tokens` `[R, L]` are those of the prompt that
    # each member's prefix cache held when the request was first scheduled. A request has finished if it ended and was
    # not rejected
    requests: Columns
    preemptions: Columns  # one row each (PREEMPTION_FIELDS), in order of time; `request` is an index into `requests`
    # states of the replicas (SERIES_FIELDS), each from `at_ps` until the next one of its replica, and thinned as
    # `runs.recorder.ReplicaStates` says; `used_blocks` by level
    series: Columns
    # runs of gaps between outputs (GAP_FIELDS): `rows` requests each saw `count` gaps, `first_ps`, `first_ps +
    # increment_ps` and so on. Those of requests that did not finish are among them
    gaps: Columns
    operations: KeptOperations | None = None  # None where they were not kept

    @property
    def finished(self) -> NDArray[np.bool_]:
        """`[R]` whether each request finished."""
        return np.asarray((self.requests["ended_at_ps"] != UNKNOWN) & (self.requests["rejected"] == ""))


GAPS, PREEMPTIONS, REQUESTS, SERIES = (f"{name}.parquet" for name in ("gaps", "preemptions", "requests", "series"))


def check_log(log: ServingLog, path: Path, *, ids_are_unique: bool = False) -> None:
    """Reject an inconsistent log; `path` is the folder that errors name.

    `ids_are_unique` says that this was checked as requests were gathered.

    Raises:
        TraceFormatError: the first rule that is broken, with its file, field and row.
    """
    if log.meta.ended_at_ps > MOST_PS:
        raise TraceFormatError(path / "meta.json", "ended_at_ps", f"must be at most {MOST_PS}", log.meta.ended_at_ps)
    if not ids_are_unique:
        ids = log.requests["request_id"]
        again = Rule("request_id", _is_again(ids.tolist()), "must be unique", ids)
        check_rules(path / REQUESTS, [again], row_number)
    for name, rules in (
        (REQUESTS, _of_requests),
        (PREEMPTIONS, _of_preemptions),
        (SERIES, _of_series),
        (GAPS, _of_gaps),
    ):
        check_rules(path / name, rules(log, path / name), row_number)
    _check_gap_sums(log, path / GAPS)
    if (found := log.operations) is not None:
        sizes = {"replicas": len(log.meta.replicas), "levels": len(log.meta.members), "end_ps": log.meta.ended_at_ps}
        check_rules(path / kept.OPERATIONS, rules_of_operations(found, **sizes), row_number)
        rows = rules_of_rows(found, requests=len(log.requests["request_id"]))
        check_rules(path / kept.ROWS, rows, row_number)


def _by_level(log: ServingLog, columns: Columns, field: str, path: Path) -> NDArray[np.int64]:
    """`[rows, L]` a column; raises TraceFormatError for another shape."""
    values = columns[field]
    if values.shape[1:] != (len(log.meta.members),):
        raise TraceFormatError(path, field, f"must hold {len(log.meta.members)} each", values.shape[1:])
    return values


def _is_again(names: list[str]) -> NDArray[np.bool_]:
    """Whether each name came before."""
    again = np.zeros(len(names), dtype=bool)
    if len(set(names)) < len(names):
        again[:] = True
        again[np.unique(names, return_index=True)[1]] = False
    return again


def _of_requests(log: ServingLog, path: Path) -> Iterator[Rule]:
    columns, end = log.requests, log.meta.ended_at_ps
    ids = columns["request_id"]
    yield Rule("request_id", ids == "", "must not be empty", ids)
    yield within(columns, "replica", 0, len(log.meta.replicas) - 1)
    yield within(columns, "prompt_tokens", 1, MOST_COUNT)
    yield within(columns, "output_tokens", 1, MOST_COUNT)
    cached = _by_level(log, columns, "cached_tokens", path)
    outside = np.any((cached < 0) | (cached > columns["prompt_tokens"][:, None]), axis=1)
    yield Rule("cached_tokens", outside, "must be in [0, prompt_tokens]", cached)
    yield within(columns, "arrived_at_ps", 0, end)
    for field in ("scheduled_at_ps", "first_token_at_ps", "ended_at_ps"):
        yield within(columns, field, UNKNOWN, end)
    arrived, scheduled, first, ended = (
        columns[f"{what}_at_ps"] for what in ("arrived", "scheduled", "first_token", "ended")
    )
    is_rejected = columns["rejected"] != ""
    early = (scheduled != UNKNOWN) & (scheduled < arrived)
    yield Rule("scheduled_at_ps", early, "must not be before the arrival", scheduled)
    early = (first != UNKNOWN) & ((scheduled == UNKNOWN) | (first < scheduled) | is_rejected)
    words = "must not be before the request was scheduled, and not be there if it was rejected"
    yield Rule("first_token_at_ps", early, words, first)
    after = np.where(is_rejected, np.maximum(arrived, scheduled), first)
    early = (ended != UNKNOWN) & ((ended < after) | (after == UNKNOWN))
    yield Rule("ended_at_ps", early, "must not be before the first token", ended)
    yield Rule("ended_at_ps", is_rejected & (ended == UNKNOWN), "must be there of a rejected request", ended)
    if not log.meta.stopped:
        yield Rule("ended_at_ps", ended == UNKNOWN, "must be there where the run was not stopped", ended)
    emitted, asked = columns["emitted_tokens"], columns["output_tokens"]
    yield Rule("emitted_tokens", emitted > asked, "must be at most output_tokens", emitted)
    short = log.finished & (emitted != asked)
    yield Rule("emitted_tokens", short, "must be output_tokens of a finished request", emitted)
    other = (emitted > 0) != (first != UNKNOWN)
    yield Rule("emitted_tokens", other, "must be > 0 with a first token, else 0", emitted)


def _of_preemptions(log: ServingLog, path: Path) -> Iterator[Rule]:
    requests, at_ps = log.preemptions["request"], log.preemptions["at_ps"]
    yield within(log.preemptions, "request", 0, len(log.requests["request_id"]) - 1)
    scheduled = log.requests["scheduled_at_ps"][requests]
    yield Rule("request", scheduled == UNKNOWN, "must have been scheduled", requests)
    outside = (at_ps < scheduled) | (at_ps > log.meta.ended_at_ps)
    yield Rule("at_ps", outside, "must be between the request's first step and the end of the run", at_ps)


def _of_series(log: ServingLog, path: Path) -> Iterator[Rule]:
    columns, totals = log.series, log.meta.replicas
    yield within(columns, "replica", 0, len(totals) - 1)
    yield within(columns, "at_ps", 0, log.meta.ended_at_ps)
    owner, at_ps = columns["replica"], columns["at_ps"]
    steps = np.diff(owner, prepend=owner[:1])
    yield Rule("replica", steps < 0, "must be in order", owner)
    back = (steps == 0) & (np.diff(at_ps, prepend=at_ps[:1]) < 0)
    yield Rule("at_ps", back, "must be in order for each replica", at_ps)
    for field in ("running", "waiting"):
        most = np.array([getattr(replica, f"most_{field}") for replica in totals])
        outside = (columns[field] < 0) | (columns[field] > most[owner])
        yield Rule(field, outside, f"must be in [0, most_{field}]", columns[field])
    used = _by_level(log, columns, "used_blocks", path)
    most = np.array([[member.most_blocks for member in replica.members] for replica in totals])
    outside = np.any((used < 0) | (used > most[owner]), axis=1)
    yield Rule("used_blocks", outside, "must be in [0, most_blocks]", used)


def _of_gaps(log: ServingLog, path: Path) -> Iterator[Rule]:
    columns = log.gaps
    yield within(columns, "count", 1, MOST_COUNT)
    yield within(columns, "rows", 1, MOST_COUNT)
    yield within(columns, "first_ps", 0, MOST_PS)
    yield within(columns, "increment_ps", -MOST_PS, MOST_PS)
    increment, later = columns["increment_ps"], columns["count"] - 1
    words = f"must leave the last gap in [0, {MOST_PS}]"
    # First in floats, so that the integers cannot overflow.
    yield Rule("increment_ps", np.abs(increment * later.astype(np.float64)) > 2.0**62, words, increment)
    last = columns["first_ps"] + increment * later
    yield Rule("increment_ps", (last < 0) | (last > MOST_PS), words, increment)


def _check_gap_sums(log: ServingLog, path: Path) -> None:
    """Outputs of a request are at most its tokens; gaps of a finished one fill the time from first to last token."""
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


_TEXTS = {"request_id", "tag", "slo", "rejected"}
_BY_LEVEL = {"cached_tokens", "used_blocks"}
# Columns in which UNKNOWN is null in the file.
_MAY_LACK = {"scheduled_at_ps", "first_token_at_ps", "ended_at_ps"}
_LIST = pa.list_(pa.field("element", pa.int64(), nullable=False))


def _field(name: str) -> pa.Field:
    kind = pa.string() if name in _TEXTS else _LIST if name in _BY_LEVEL else pa.int64()
    return pa.field(name, kind, nullable=name in _MAY_LACK)


SCHEMAS = {
    file: pa.schema([_field(name) for name in fields])
    for file, fields in {
        GAPS: GAP_FIELDS,
        PREEMPTIONS: PREEMPTION_FIELDS,
        REQUESTS: REQUEST_FIELDS,
        SERIES: SERIES_FIELDS,
    }.items()
}


_FOLDER = StoredFolder(ServingMeta, tuple(SCHEMAS), indent=1)
_WITH_OPERATIONS = StoredFolder(ServingMeta, (*SCHEMAS, *kept.SCHEMAS), indent=1)


def write_serving(log: ServingLog, path: Path) -> None:
    """Write the folder of a run.

    Raises:
        ValueError: `path` exists already, or lies inside a recording.
        OSError: naming `path`; nothing written is left.
    """
    with new_folder(path) as part:
        tables = {GAPS: log.gaps, PREEMPTIONS: log.preemptions, REQUESTS: log.requests, SERIES: log.series}
        if log.operations is not None:
            tables |= {kept.OPERATIONS: log.operations.ops, kept.ROWS: log.operations.rows}
        for name, columns in tables.items():
            table = _table(columns, (SCHEMAS | kept.SCHEMAS)[name])
            # Without Arrow's own schema the same run gives the same bytes.
            pq.write_table(table, part / name, compression="zstd", store_schema=False)
        (_FOLDER if log.operations is None else _WITH_OPERATIONS).write_meta(part, log.meta)


def read_serving(path: Path) -> ServingLog:
    """Read the folder of a run.

    Raises:
        TraceFormatError: anything in it breaks a rule; the message is one line.
    """
    check_run_folder(path, "a serving run")
    has_operations = (path / kept.OPERATIONS).exists()
    meta, sha256 = (_WITH_OPERATIONS if has_operations else _FOLDER).read_meta(path)
    schemas = SCHEMAS | kept.SCHEMAS if has_operations else SCHEMAS
    tables = {name: read_table(path / name, sha256[name], schema) for name, schema in schemas.items()}
    columns = {name: _columns(table, path / name, len(meta.members)) for name, table in tables.items()}
    log = ServingLog(
        meta=meta,
        requests=columns[REQUESTS],
        preemptions=columns[PREEMPTIONS],
        series=columns[SERIES],
        gaps=columns[GAPS],
        operations=KeptOperations(ops=columns[kept.OPERATIONS], rows=columns[kept.ROWS]) if has_operations else None,
    )
    check_log(log, path)
    return log


def _table(columns: Columns, schema: pa.Schema) -> pa.Table:
    arrays = []
    for field in schema:
        values = columns[field.name]
        if field.name in _BY_LEVEL:
            rows, levels = values.shape
            offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * levels)
            arrays.append(pa.ListArray.from_arrays(offsets, pa.array(values.ravel()), type=field.type))
        else:
            lacking = values == UNKNOWN if field.name in _MAY_LACK else None
            arrays.append(pa.array(values, type=field.type, mask=lacking))
    return pa.table(arrays, schema=schema)


def _columns(table: pa.Table, path: Path, levels: int) -> Columns:
    return {name: _column(table.column(name).combine_chunks(), path, name, levels) for name in table.column_names}


def _column(values: pa.Array, path: Path, name: str, levels: int) -> NDArray[Any]:
    if name in _TEXTS:
        return np.array(values.to_pylist(), dtype=object)
    if name in _BY_LEVEL:
        lengths = values.value_lengths().to_numpy()
        if (lengths != levels).any():
            found = int(lengths[lengths != levels][0])
            raise TraceFormatError(path, name, f"must hold one per member, {levels}", found)
        return np.asarray(values.flatten()).reshape(-1, levels)
    if name in _MAY_LACK:
        if (values.drop_null().to_numpy() < 0).any():
            raise TraceFormatError(path, name, "must be >= 0, or null", "less")
        return np.asarray(values.fill_null(UNKNOWN))
    return np.asarray(values)
