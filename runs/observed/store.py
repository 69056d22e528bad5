"""The folder of an observed run: `meta.json` and a hashed Parquet file, written whole or not at all."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import model_validator

from ...traces.errors import TraceFormatError
from ...traces.folder import META, hash_file, kind_of, read_meta, read_table
from ...traces.workloads.exact_seconds import MOST_PS
from ...traces.workloads.options import MOST_COUNT
from ..log import new_folder
from .meta import ObservedMeta, ObservedRun
from .request import ObservedRequest

REQUESTS = "requests.parquet"
_TEXTS = {"request_id", "tag", "slo", "prompt_id", "finish_reason", "failed"}
_MAY_LACK = {"ended_at_ps", "prompt_tokens", "output_tokens", "cached_tokens", "drafted", "accepted"}
_OUTPUTS = "outputs_at_ps"


def _field(name: str) -> pa.Field:
    if name == _OUTPUTS:
        return pa.field(name, pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False)
    return pa.field(name, pa.string() if name in _TEXTS else pa.int64(), nullable=name in _MAY_LACK)


SCHEMA = pa.schema([_field(field.name) for field in fields(ObservedRequest)])


class StoredObservedMeta(ObservedMeta):
    """`meta.json` as it lies on the disk.

    Attributes:
        sha256: of the Parquet file.
    """

    sha256: dict[str, str]

    @model_validator(mode="after")
    def _all_files(self) -> "StoredObservedMeta":
        if set(self.sha256) != {REQUESTS}:
            raise ValueError(f"sha256 must name {REQUESTS}, got {sorted(self.sha256)}")
        return self


def write_observed(run: ObservedRun, path: Path) -> None:
    """Write the folder of a run.

    Raises:
        ValueError: `path` exists already, or lies inside a recording.
        OSError: naming `path`; nothing stays of what was written.
    """
    with new_folder(path) as part:
        table = pa.Table.from_pylist([asdict(one) for one in run.requests], schema=SCHEMA)
        pq.write_table(table, part / REQUESTS, compression="zstd", store_schema=False)
        stored = StoredObservedMeta(**run.meta.model_dump(), sha256={REQUESTS: hash_file(part / REQUESTS)})
        (part / META).write_text(f"{stored.model_dump_json(indent=1)}\n", encoding="utf-8")


def is_observed(path: Path) -> bool:
    """Whether a folder says that it is one of an observed run."""
    return path.is_dir() and (path / META).is_file() and kind_of(path) == "observed"


def read_observed(path: Path) -> ObservedRun:
    """Read the folder of a run.

    Raises:
        TraceFormatError: anything about it is not sound; the message is one line.
    """
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise TraceFormatError(path, "run", "must be the folder of an observed run", found)
    stored = read_meta(path / META, StoredObservedMeta)
    table = read_table(path / REQUESTS, stored.sha256[REQUESTS], SCHEMA)
    rows = table.to_pylist()
    ids: set[str] = set()
    for number, row in enumerate(rows):
        _check_row(path / REQUESTS, number, row, stored.ended_at_ps)
        if row["request_id"] in ids:
            raise TraceFormatError(path / REQUESTS, "request_id", f"must be unique (row {number})", row["request_id"])
        ids.add(row["request_id"])
    requests = tuple(ObservedRequest(**row | {_OUTPUTS: tuple(row[_OUTPUTS])}) for row in rows)
    return ObservedRun(ObservedMeta.model_validate(stored.model_dump(exclude={"sha256"})), requests)


def _check_row(path: Path, number: int, row: Mapping[str, Any], last_ps: int) -> None:
    """Times in order, counts in range; raises TraceFormatError for the first rule that is broken."""

    def require(holds: bool, field: str, rule: str) -> None:
        if not holds:
            raise TraceFormatError(path, field, f"{rule} (row {number})", row[field])

    require(row["request_id"] != "", "request_id", "must not be empty")
    require(1 <= row["asked_tokens"] <= MOST_COUNT, "asked_tokens", f"must be in [1, {MOST_COUNT}]")
    for field in ("prompt_tokens", "output_tokens", "cached_tokens", "drafted", "accepted"):
        least = 1 if field == "prompt_tokens" else 0
        require(row[field] is None or least <= row[field] <= MOST_COUNT, field, f"must be in [{least}, {MOST_COUNT}]")
    times = [row["due_at_ps"], row["sent_at_ps"], *row[_OUTPUTS]]
    require(row["due_at_ps"] >= 0, "due_at_ps", "must be >= 0")
    require(times == sorted(times), _OUTPUTS, "must be in order, after the request was due and sent")
    ended = row["ended_at_ps"]
    require(ended is None or ended >= times[-1], "ended_at_ps", "must not be before the last chunk")
    most = min(last_ps, MOST_PS)
    require(max(times[-1], ended or 0) <= most, "ended_at_ps", f"must not be after the end of the run, {most}")
    require(not row["failed"] or ended is not None, "ended_at_ps", "must be there of a request that failed")
