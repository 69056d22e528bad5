"""The log of a run, in one form for both worlds: steps, operations, rounds and requests, as Parquet.

`RunLedger` collects it while a loop runs (it fits `decoding.results.Ledger` by shape, which says what the columns of
operations and steps hold). Functions compute from it: how good texts are by the target's probabilities, how far each
operation moved the run on, and seconds per token of each request, which show when speculation made a request slower
than the target alone (it thrashes).
"""

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from math import nan
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..base.files import checked_json, whole_folder
from ..decoding.results import COMMIT, VERIFY, OpRecord, StepRecord
from ..traces.errors import TraceFormatError
from ..traces.folder import META, Rule, check_outside, check_rules, parquet_errors, read_bytes

UNKNOWN_COUNT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuality:
    """One answer beside the target's own text for the same prompt, its *trunk*; the columns of a run log.

    A count is -1 where it is unknown. Log-probabilities are the target's, of the distribution that sampling draws from,
    each at least -64 nats (`traces.contexts.columns.LOG_PROBS`).
    """

    divergences: int = UNKNOWN_COUNT  # committed tokens that the target would not have written in their very context
    seen_tokens: int = 0  # committed tokens for which that is known
    scored_tokens: int = 0  # those of them whose log-probability is known
    log_prob: float = 0.0  # sum of these, nats, <= 0
    trunk_tokens: int = UNKNOWN_COUNT  # of the target's own text
    trunk_log_prob: float = 0.0  # sum over all of them, nats, <= 0
    same_tokens: int = UNKNOWN_COUNT  # positions at which the two texts are the same
    same_start: int = UNKNOWN_COUNT  # leading ones among them
    # Leading committed tokens whose very contexts are on record; all of them if replay never left it.
    exact_start: int = UNKNOWN_COUNT
    right: int = UNKNOWN_COUNT  # 1 if the answer is right, 0 if not
    trunk_right: int = UNKNOWN_COUNT  # the same of the target's own text


def same_counts(tokens: list[int], trunk: list[int]) -> tuple[int, int]:
    """(positions at which two texts are the same, leading ones among them)."""
    same = [ours == theirs for ours, theirs in zip(tokens, trunk, strict=False)]
    return sum(same), next((index for index, alike in enumerate(same) if not alike), len(same))


Columns = dict[str, NDArray[Any]]

OP_FIELDS = OpRecord._fields
# A step's operation and its request, by index, then what its record says.
STEP_FIELDS = ("op", "request", *StepRecord._fields[1:])
QUALITY_FIELDS = tuple(field.name for field in fields(TextQuality))
_GROUP = 1 << 20  # rows written at a time
REQUEST_FIELDS = (
    "request_id",
    "tag",
    "prompt_tokens",
    "emitted_tokens",
    "arrived_at_s",
    "admitted_at_s",
    "first_token_at_s",
    "finished_at_s",
    "reanchored",
    "divergent_tokens",
    "failed",
    "preempted",
    "times_plain",
    *QUALITY_FIELDS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """What happened in one run."""

    meta: dict[str, Any]  # what was run: policy, trace or pool, cost, batch, seed, members in level order
    ops: Columns  # one row per batched operation (OP_FIELDS)
    # one row per step of a request (STEP_FIELDS); `op` is -1 for a Commit, which runs nothing; `prefill` is 1 for the
    # loop's own step, in which the target wrote the first token, and 0 for what a policy decided
    steps: Columns
    requests: Columns  # one row per finished or failed request (REQUEST_FIELDS), in the order of their index in `steps`
    # in a replay step by step, whether another seed would give this very run; never written
    repeats: Callable[[int], bool] | None = None

    def decided(self) -> NDArray[np.bool_]:
        """Which steps a policy decided: not the prefills, and each Overlap once."""
        first: NDArray[np.bool_] = (self.steps["prefill"] == 0) & (self.steps["part"] == 0)
        return first

    def rounds(self) -> Columns:
        """One row per round: everything of a request between two commits by the target, the prefill among these.

        Columns: `request`, `round` (0-based), `end_s`, `drafted`, `judged` and `accepted` by the target in it,
        `emitted` (by the target, its own token included). The prefill is no round, and steps after a request's last
        commit by the target are in none.
        """
        steps = self.steps
        target = len(self.meta["members"]) - 1
        closes = (steps["kind"] == VERIFY) & (steps["level"] == target) & (steps["prefill"] == 0)
        order = np.argsort(steps["request"], kind="stable")
        requests = steps["request"][order]
        ends = np.flatnonzero(closes[order])
        at = order[ends]
        first = np.searchsorted(requests[ends], requests[ends], side="left")
        # A round starts after the one before it, and not before its request's first step.
        starts = np.searchsorted(requests, requests[ends], side="left")
        starts[1:] = np.maximum(starts[1:], ends[:-1] + 1)
        drafted = np.concatenate([[0], np.cumsum(steps["drafted"][order])])
        return {
            "request": requests[ends],
            "round": np.arange(len(ends)) - first,
            "end_s": steps["end_s"][at],
            "drafted": drafted[ends + 1] - drafted[starts],
            "judged": steps["judged"][at],
            "accepted": steps["accepted"][at],
            "emitted": steps["emitted"][at],
        }


def with_quality(log: RunLog, qualities: Mapping[str, TextQuality]) -> RunLog:
    """The log with the quality of its requests' texts, by request; a request that is missing is unknown."""
    unknown = TextQuality()
    rows = [qualities.get(request_id, unknown) for request_id in log.requests["request_id"].tolist()]
    columns = {name: np.asarray([getattr(row, name) for row in rows]) for name in QUALITY_FIELDS}
    emitted, trunk, same = (log.requests["emitted_tokens"], columns["trunk_tokens"], columns["same_tokens"])
    # Of a lossy run on real models this is the only source of how many positions differ.
    differ = np.where(same >= 0, np.maximum(emitted, trunk) - same, log.requests["divergent_tokens"])
    return replace(log, requests={**log.requests, **columns, "divergent_tokens": differ})


def to_columns(fields: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Columns:
    """Rows to arrays, one per field; empty int arrays for no rows."""
    if not rows:
        return {field: np.zeros(0, dtype=np.int64) for field in fields}
    # As objects, since numpy's own texts lose NULs at their end, and an id must come back as it was.
    return {
        field: np.asarray(values, dtype=object if isinstance(values[0], str) else None)
        for field, values in zip(fields, zip(*rows, strict=True), strict=True)
    }


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """As `whole_folder`, and nothing is replaced: raises ValueError if `path` exists, or lies inside a recording."""
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path}: exists already; a run is never overwritten")
    check_outside(path)
    with whole_folder(path) as part:
        yield part


def check_run_folder(path: Path, kind: str) -> None:
    """Raises TraceFormatError for a path that cannot be the folder of a run of this kind."""
    if not path.is_dir():
        found = "a file" if path.exists() else "no such folder"
    elif not (path / META).exists():
        found = f"a folder without {META}"
    else:
        return
    raise TraceFormatError(path, "run", f"must be the folder of {kind}", found)


def write_run_log(log: RunLog, path: Path, *, extra: Mapping[str, str] | None = None) -> None:
    """Write `path/` with meta.json, ops, steps, rounds, requests and `extra` text files by name, whole or not at all.

    Raises ValueError if `path` exists.
    """
    tables = {"ops": log.ops, "steps": log.steps, "rounds": log.rounds(), "requests": log.requests}
    with new_folder(path) as part:
        for name, columns in tables.items():
            _write_columns(columns, part / f"{name}.parquet")
        (part / "meta.json").write_text(json.dumps(log.meta, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        for name, text in (extra or {}).items():
            (part / name).write_text(text, encoding="utf-8")


def read_run_log(path: Path) -> RunLog:
    """Read the folder of a run; its rounds follow from its steps.

    Raises:
        TraceFormatError: a file or a column that is not there or of another kind, or an index out of range; one line.
    """
    check_run_folder(path, "a run log")
    meta_file = path / META
    meta = checked_json(meta_file, TraceFormatError, content=read_bytes(meta_file))
    members = meta.get("members") if isinstance(meta, dict) else None
    if not (isinstance(members, list) and members and all(isinstance(name, str) for name in members)):
        raise TraceFormatError(
            meta_file, "members", "must be the names of the members, as in the folder of a run", members
        )
    fields_of = {"ops": OP_FIELDS, "steps": STEP_FIELDS, "requests": REQUEST_FIELDS}
    columns = {name: _read_columns(path / f"{name}.parquet", fields) for name, fields in fields_of.items()}
    log = RunLog(meta=meta, ops=columns["ops"], steps=columns["steps"], requests=columns["requests"])
    last_op, last_request, last_level = (len(of) - 1 for of in (log.ops["kind"], log.requests["request_id"], members))
    of_steps = (("op", -1, last_op), ("request", 0, last_request), ("level", 0, last_level))
    check_rules(path / "steps.parquet", [within(log.steps, *bounds) for bounds in of_steps], row_number)
    check_rules(path / "ops.parquet", [within(log.ops, "level", 0, last_level)], row_number)
    return log


def row_number(row: int) -> str:
    """How errors name a row of a file."""
    return f"row {row}"


def within(columns: Columns, field: str, least: int, most: int) -> Rule:
    """The rule that a column's numbers are in [least, most]."""
    values = columns[field]
    return Rule(field, (values < least) | (values > most), f"must be in [{least}, {most}]", values)


def from_packed(packed: "NDArray[np.int64] | array[int]", fields: Sequence[str]) -> Columns:
    """Columns of rows that were packed one after another, copied."""
    rows = np.asarray(packed, dtype=np.int64).reshape(-1, len(fields))
    return {name: rows[:, place].copy() for place, name in enumerate(fields)}


def _read_columns(file: Path, fields: tuple[str, ...]) -> Columns:
    """The columns of these names: numbers, seconds and texts by how they are called."""
    data = read_bytes(file)
    with parquet_errors(file):
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
    found: Columns = {}
    for field in fields:
        if table.column_names.count(field) != 1:
            raise TraceFormatError(file, field, "must be a column of the file, once", table.column_names)
        kind = table.schema.field(field).type
        values = table.column(field)
        is_text, is_float = pa.types.is_string(kind), pa.types.is_floating(kind)
        wanted = "text" if field in _TEXTS else "seconds" if field.endswith("_s") else "number"
        right = is_text if wanted == "text" else is_float or pa.types.is_integer(kind)
        if not right or values.null_count:
            raise TraceFormatError(file, field, f"must hold a {wanted} each", f"{kind}, {values.null_count} nulls")
        found[field] = np.array(values.to_pylist(), dtype=object) if is_text else values.to_numpy()
    return found


_TEXTS = {"request_id", "tag", "failed"}


def _write_columns(columns: Columns, file: Path) -> None:
    """Whole numbers as 64-bit integers, whatever their type in memory; in groups, as a long run fills memory."""
    size = len(next(iter(columns.values())))
    pieces = (slice(start, start + _GROUP) for start in range(0, max(size, 1), _GROUP))
    first = _table(columns, next(pieces))
    with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for rows in pieces:
            writer.write_table(_table(columns, rows))


def _table(columns: Columns, rows: slice) -> pa.Table:
    pieces = {name: column[rows] for name, column in columns.items()}
    return pa.table({name: part.astype(np.int64) if part.dtype.kind == "i" else part for name, part in pieces.items()})


def added_seconds(log: RunLog) -> NDArray[np.float64]:
    """`[N]` seconds of the operations in `log.ops`; of a further part of an `Overlap` those after earlier ones ended.

    So the operations of one `Overlap` add up to its own seconds, whichever devices they ran on. All others count whole.
    """
    starts, durations = log.ops["start_s"], log.ops["duration_s"].astype(np.float64)
    part, ends, added = parts_of(log), starts + durations, durations.copy()
    for op in np.flatnonzero(part):
        covered = ends[op - part[op] : op].max()  # the parts of an Overlap stand one after the other
        added[op] = min(durations[op], max(0.0, ends[op] - covered))
    return added


def parts_of(log: RunLog) -> NDArray[np.int64]:
    """`[N]` which part of an `Overlap` each operation is, by its index; 0 for all others."""
    part = np.zeros(len(log.ops["kind"]), dtype=np.int64)
    ran = log.steps["op"] >= 0
    part[log.steps["op"][ran]] = log.steps["part"][ran]
    return part


# Integers that do not take four bytes: small ones, and tokens fed to a batch.
_CODES = {"kind": "b", "prefill": "b", "part": "b", "refused": "b", "level": "h", "own": "h", "new_tokens": "q"}


class RunLedger:
    """Packs one row per operation and per step; `finish` turns them into columns."""

    def __init__(self) -> None:
        # Packed rows: smaller than tuples, and faster to append to than an array.array.
        self._ops = bytearray()
        self._steps = bytearray()
        self._pack_op = _packer(OP_FIELDS).pack
        self._pack_step = _packer(STEP_FIELDS).pack
        self._last_op = -1
        self._requests: list[tuple[Any, ...]] = []
        self._indices: dict[str, int] = {}
        self._failed: dict[str, tuple[str, float]] = {}
        self._preempted: Counter[str] = Counter()

    def note_admitted(self, request_id: str, *, tag: str, num_prompt: int, arrived_at_s: float, now_s: float) -> None:
        """A request starts; its index in `steps` is the order of admission."""
        self._indices[request_id] = len(self._requests)
        self._requests.append((request_id, tag, num_prompt, arrived_at_s, now_s))

    def note_op(self, record: OpRecord) -> None:
        """An operation finished."""
        self._last_op += 1
        self._ops += self._pack_op(*record)

    def note_step(self, record: StepRecord) -> None:
        """A step of one request finished; it belongs to the latest operation, unless it is a Commit."""
        op = -1 if record.kind == COMMIT else self._last_op
        self._steps += self._pack_step(op, self._indices[record.request_id], *record[1:])

    def note_block(self, ops: Columns, steps: Columns) -> None:
        """Operations `[N]` by OP_FIELDS that finished one after another, and their steps `[M]` by STEP_FIELDS.

        What is left out is 0; the `op` of a step counts from the first of these operations, -1 is a Commit.
        """
        first = self._last_op + 1
        self._last_op += len(ops["kind"])
        self._ops += _packed(OP_FIELDS, ops)
        self._steps += _packed(STEP_FIELDS, steps | {"op": np.where(steps["op"] < 0, -1, steps["op"] + first)})

    def note_failed(self, request_id: str, error: str, end_s: float) -> None:
        """A request ended unfinished, for the reason `error`; raises ValueError for an empty reason."""
        if not error:
            raise ValueError(f"request {request_id}: failed must give a reason, got ''")
        self._failed[request_id] = (error, end_s)

    def note_preempted(self, request_id: str) -> None:
        """A step of a request did not run, since memory was short."""
        self._preempted[request_id] += 1

    def finish(
        self,
        meta: dict[str, Any],
        *,
        reanchored: Mapping[str, int],
        divergent: Mapping[str, int],
    ) -> RunLog:
        """The run log.

        Its columns are views of the packed rows: nothing more can be noted while they are held. `with_quality` adds the
        quality of texts, `with_times_plain` how seconds compare with plain decoding.

        Args:
            meta: what was run.
            reanchored: per request, times replay resumed on the trunk after leaving the record.
            divergent: per request, committed tokens that differ from the target's own text at their position.
        """
        steps = _unpacked(STEP_FIELDS, self._steps)
        first, last = _first_and_last(steps, len(self._requests))
        emitted = np.bincount(steps["request"], weights=steps["emitted"], minlength=len(self._requests))
        rows = []
        quality = astuple(TextQuality())
        for index, (request_id, tag, num_prompt, arrived, admitted) in enumerate(self._requests):
            failed, finished = self._failed.get(request_id, ("", float(last[index])))
            row = (request_id, tag, num_prompt, int(emitted[index]), arrived, admitted, float(first[index]), finished)
            counts = (reanchored.get(request_id, 0), divergent.get(request_id, 0))
            rows.append((*row, *counts, failed, self._preempted[request_id], nan, *quality))
        requests = to_columns(REQUEST_FIELDS, rows)
        return RunLog(meta=meta, ops=_unpacked(OP_FIELDS, self._ops), steps=steps, requests=requests)


def _first_and_last(steps: Columns, num_requests: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When each request's first and last step that emitted ended, seconds; NaN for one that never did."""
    first = np.full(num_requests, np.nan)
    last = np.full(num_requests, np.nan)
    commits = np.flatnonzero(steps["emitted"] > 0)
    # Steps are in order of time: writing backwards leaves each request's first commit.
    first[steps["request"][commits][::-1]] = steps["end_s"][commits][::-1]
    last[steps["request"][commits]] = steps["end_s"][commits]
    return first, last


def _codes(fields: tuple[str, ...]) -> list[str]:
    """Of each field: a double for durations and instants, else an integer of as many bytes as it needs."""
    return ["d" if field.endswith("_s") else _CODES.get(field, "i") for field in fields]


def _packer(fields: tuple[str, ...]) -> Struct:
    """Rows laid out as a compiler would, so that columns are views without a copy."""
    return Struct("@" + "".join(_codes(fields)) + "0d")


def _row_type(fields: tuple[str, ...]) -> np.dtype[np.void]:
    """The same layout as `_packer`, for numpy."""
    return np.dtype(list(zip(fields, _codes(fields), strict=True)), align=True)


def _packed(fields: tuple[str, ...], columns: Columns) -> bytes:
    """Pack columns into rows; the first field must be there, others that are left out are 0."""
    table = np.zeros(len(columns[fields[0]]), _row_type(fields))
    for field in columns.keys() & set(fields):
        table[field] = columns[field]
    return table.tobytes()


def _unpacked(fields: tuple[str, ...], rows: bytearray) -> Columns:
    """Columns of packed rows, not copied: a long run would take twice the memory."""
    table = np.frombuffer(rows, dtype=_row_type(fields))
    return {field: table[field] for field in fields}


def seconds_per_token(log: RunLog) -> dict[str, float]:
    """Seconds per token by request id, after each request's first commit: prefill does not depend on speculation.

    An operation counts whole for each request in it; parts of an `Overlap` that ran at the same time count once
    (`added_seconds`). An operation in which another request's prompt was read counts as the median of its kind and
    member. Requests that emitted nothing after their first commit are left out.
    """
    order = np.argsort(log.steps["request"], kind="stable")
    steps = {name: log.steps[name][order] for name in ("op", "request", "emitted")}
    ids = log.requests["request_id"]
    before = np.cumsum(steps["emitted"]) - steps["emitted"]
    starts = np.searchsorted(steps["request"], steps["request"], side="left")
    later = before > before[starts]
    request = steps["request"][later]
    ops = steps["op"][later]
    ran = ops >= 0  # a Commit belongs to no operation
    seconds = np.bincount(request[ran], weights=_without_prompts(log)[ops[ran]], minlength=len(ids))
    tokens = np.bincount(request, weights=steps["emitted"][later], minlength=len(ids))
    return {str(ids[index]): float(seconds[index] / tokens[index]) for index in np.flatnonzero(tokens)}


def with_times_plain(log: RunLog, plain_s: float) -> RunLog:
    """The log with seconds per token over `plain_s`, those of plain decoding, of the requests that drafted."""
    drafted = np.unique(log.steps["request"][log.steps["drafted"] > 0])
    each_s, times = seconds_per_token(log), np.full(len(log.requests["request_id"]), nan)
    times[drafted] = [each_s.get(name, nan) / plain_s for name in log.requests["request_id"][drafted].tolist()]
    return replace(log, requests=log.requests | {"times_plain": times})


def _without_prompts(log: RunLog) -> NDArray[np.float64]:
    """Seconds of every operation, with the median of the others of its kind and member for one that read a prompt."""
    steps, ops = log.steps, log.ops
    seconds = added_seconds(log)
    ran = steps["op"] >= 0
    members = steps["request"][ran] * len(log.meta["members"]) + steps["level"][ran]
    _, first = np.unique(members, return_index=True)  # steps are in order of time
    reads = np.zeros(len(seconds), dtype=bool)
    reads[steps["op"][ran][first]] = True
    columns = np.stack([ops["level"], ops["kind"], parts_of(log)])
    kinds = np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1)
    for kind in np.unique(kinds[reads]):
        others = seconds[(kinds == kind) & ~reads]
        if len(others):
            seconds[(kinds == kind) & reads] = np.median(others)
    return seconds
