"""The folder of a serving run: `meta.json` and hashed Parquet files, written whole or not at all, checked when read."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import model_validator

from ...traces.errors import TraceFormatError
from ...traces.folder import META, hash_file, read_meta, read_table
from ..log import Columns, new_folder
from .log import GAP_FIELDS, PREEMPTION_FIELDS, REQUEST_FIELDS, SERIES_FIELDS, UNKNOWN, ServingLog
from .meta import ServingMeta
from .validate import GAPS, PREEMPTIONS, REQUESTS, SERIES, check_log

_TEXTS = {"request_id", "tag", "slo", "rejected"}
_BY_LEVEL = {"cached_tokens", "used_blocks"}
# Of these UNKNOWN is null in the file.
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


class StoredServingMeta(ServingMeta):
    """`meta.json` as it lies on the disk.

    Attributes:
        sha256: of each Parquet file.
    """

    sha256: dict[str, str]

    @model_validator(mode="after")
    def _all_files(self) -> "StoredServingMeta":
        if set(self.sha256) != set(SCHEMAS):
            raise ValueError(f"sha256 must name {', '.join(sorted(SCHEMAS))}, got {sorted(self.sha256)}")
        return self


def write_serving(log: ServingLog, path: Path) -> None:
    """Write the folder of a run.

    Raises:
        ValueError: `path` exists already, or lies inside a recording.
        OSError: naming `path`; nothing stays of what was written.
    """
    with new_folder(path) as part:
        tables = {GAPS: log.gaps, PREEMPTIONS: log.preemptions, REQUESTS: log.requests, SERIES: log.series}
        for name, columns in tables.items():
            # Without Arrow's own schema the same run gives the same bytes.
            pq.write_table(_table(columns, SCHEMAS[name]), part / name, compression="zstd", store_schema=False)
        stored = StoredServingMeta(**log.meta.model_dump(), sha256={name: hash_file(part / name) for name in SCHEMAS})
        (part / META).write_text(f"{stored.model_dump_json(indent=1)}\n", encoding="utf-8")


def read_serving(path: Path) -> ServingLog:
    """Read the folder of a run.

    Raises:
        TraceFormatError: anything about it is not sound; the message is one line.
    """
    if not path.is_dir():
        raise TraceFormatError(
            path, "run", "must be the folder of a serving run", "a file" if path.exists() else "nothing"
        )
    stored = read_meta(path / META, StoredServingMeta)
    tables = {name: read_table(path / name, stored.sha256[name], schema) for name, schema in SCHEMAS.items()}
    levels = len(stored.members)
    columns = {name: _columns(table, path / name, levels) for name, table in tables.items()}
    log = ServingLog(
        meta=ServingMeta.model_validate(stored.model_dump(exclude={"sha256"})),
        requests=columns[REQUESTS],
        preemptions=columns[PREEMPTIONS],
        series=columns[SERIES],
        gaps=columns[GAPS],
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
