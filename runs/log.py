"""The log of a run, the same form for both worlds: steps, operations, rounds and requests, as Parquet.

`decoding.ledger` says what the columns of operations and steps hold.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..decoding.ledger import VERIFY, OpRecord, StepRecord
from ..traces.folder import check_outside
from ..whole_files import whole_folder
from .text_quality import TextQuality

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
    """What happened in one run.

    Attributes:
        meta: what was run: policy, trace or pool, cost, batch, seed, members in level order.
        ops: one row per batched operation (OP_FIELDS).
        steps: one row per step of a request (STEP_FIELDS); `op` is -1 for a Commit, which runs nothing; `prefill` is 1
            for the loop's own step, in which the target wrote the first token, and 0 for what a policy decided.
        requests: one row per finished or failed request (REQUEST_FIELDS), in the order of their index in `steps`.
    """

    meta: dict[str, Any]
    ops: Columns
    steps: Columns
    requests: Columns

    def decided(self) -> NDArray[np.bool_]:
        """Which steps a policy was asked for: not the prefills, and the parts of an Overlap once."""
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
    """The log with what is known of its requests' texts.

    Args:
        log: of a run.
        qualities: by request; one that is missing stays unknown.
    """
    unknown = TextQuality()
    rows = [qualities.get(request_id, unknown) for request_id in log.requests["request_id"].tolist()]
    columns = {name: np.asarray([getattr(row, name) for row in rows]) for name in QUALITY_FIELDS}
    emitted, trunk, same = (log.requests["emitted_tokens"], columns["trunk_tokens"], columns["same_tokens"])
    # Of a lossy run on real models nothing else says how many positions differ.
    differ = np.where(same >= 0, np.maximum(emitted, trunk) - same, log.requests["divergent_tokens"])
    return replace(log, requests={**log.requests, **columns, "divergent_tokens": differ})


def to_columns(fields: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Columns:
    """Rows to arrays, one per field; empty int arrays for no rows."""
    if not rows:
        return {field: np.zeros(0, dtype=np.int64) for field in fields}
    return {field: _column(values) for field, values in zip(fields, zip(*rows, strict=True), strict=True)}


def _column(values: tuple[Any, ...]) -> np.ndarray:
    # numpy's own texts lose NULs at their end, and an id must come back as it was
    return np.asarray(values, dtype=object if isinstance(values[0], str) else None)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """As `whole_folder`, and nothing is replaced.

    Raises:
        ValueError: `path` exists, or lies inside a recording.
    """
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path}: exists already; a run is never overwritten")
    check_outside(path)
    with whole_folder(path) as part:
        yield part


def write_run_log(log: RunLog, path: Path, *, extra: Mapping[str, str] | None = None) -> None:
    """Write `path/` with meta.json, ops, steps, rounds and requests, whole or not at all.

    Args:
        log: what happened.
        path: folder to make.
        extra: further text files by name.

    Raises:
        ValueError: `path` exists.
    """
    tables = {"ops": log.ops, "steps": log.steps, "rounds": log.rounds(), "requests": log.requests}
    with new_folder(path) as part:
        for name, columns in tables.items():
            _write_columns(columns, part / f"{name}.parquet")
        (part / "meta.json").write_text(json.dumps(log.meta, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        for name, text in (extra or {}).items():
            (part / name).write_text(text, encoding="utf-8")


def _write_columns(columns: Columns, file: Path) -> None:
    """Whole numbers as 64-bit integers, whatever they are kept as; group by group, as a long run fills memory."""
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
