"""The Parquet side of an imported recording: columns, their types, and tables to arrays and back.

Letters: R rounds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .columns import LISTS, RoundsColumns
from .rounds import KINDS, Rounds


def _list_of(kind: pa.DataType, *, nullable: bool = False) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=nullable))


ROUNDS_REQUEST_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        pa.field("prompt", _list_of(pa.int32()), nullable=False),
        pa.field("output", _list_of(pa.int32()), nullable=False),
        pa.field("methods", _list_of(pa.string()), nullable=False),
        pa.field("num_tokens", _list_of(pa.int32()), nullable=False),
        pa.field("wall_s", _list_of(pa.float64(), nullable=True), nullable=False),
        pa.field("prefill_s", _list_of(pa.float64(), nullable=True), nullable=False),
        pa.field("drafters", _list_of(pa.string()), nullable=False),
        pa.field("num_rounds", _list_of(pa.int32()), nullable=False),
    ]
)
ROUNDS_SCHEMA = pa.schema(
    [pa.field(name, pa.from_numpy_dtype(kind), nullable=kind is np.float64) for name, kind in KINDS.items()]
)
# Recordings made before rounds could be placed; none of theirs was.
UNPLACED_ROUNDS_SCHEMA = ROUNDS_SCHEMA.remove(ROUNDS_SCHEMA.get_field_index("placed"))


def parquet_writer(path: str, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of row groups; the same tables give the same bytes."""
    return pq.ParquetWriter(path, schema, compression="zstd", compression_level=3, store_schema=False)


def request_table(columns: RoundsColumns) -> pa.Table:
    """The table of validated requests."""
    counts = {name: getattr(columns, count) for count, names in LISTS.items() for name in names}
    arrays = [pa.array(columns.request_id, type=pa.string())]
    for field in list(ROUNDS_REQUEST_SCHEMA)[1:]:
        values = getattr(columns, field.name)
        count = counts.get(field.name)
        arrays.append(pa.array(values, type=field.type) if count is None else _lists(values, count, field.type))
    return pa.table(arrays, schema=ROUNDS_REQUEST_SCHEMA)


def rounds_table(rounds: Rounds) -> pa.Table:
    """The table of validated rounds; seconds that are unknown are null."""
    arrays = [pa.array(rounds.filled(name), from_pandas=True) for name in ROUNDS_SCHEMA.names]
    return pa.table(arrays, schema=ROUNDS_SCHEMA)


def request_arrays(table: pa.Table) -> dict[str, Any]:
    """All fields of `RoundsColumns` but those of the rounds, from a table of the right schema, not validated yet.

    The counts of `num_tokens`, `wall_s`, `prefill_s` and `num_rounds` must be those of `methods` and `drafters`:
    `misaligned` tells.
    """
    found: dict[str, Any] = {
        "request_id": table.column("id").to_pylist(),
        "tag": table.column("tag").to_pylist(),
        "prompt_tokens": table.column("prompt_tokens").to_numpy().astype(np.int64),
    }
    for count, names in LISTS.items():
        found[count] = _lengths(table, names[0])
        for name in names:
            values = table.column(name).combine_chunks().flatten()
            if pa.types.is_string(values.type):
                found[name] = values.to_pylist()
            else:
                whole = pa.types.is_integer(values.type)
                found[name] = values.cast(pa.int64() if whole else values.type).to_numpy(zero_copy_only=False)
    return found


def misaligned(table: pa.Table) -> tuple[str, str, int] | None:
    """The first list column, its partner and the row where the two differ in length; None if none does."""
    for partner, *others in LISTS.values():
        for name in others:
            differ = _lengths(table, name) != _lengths(table, partner)
            if differ.any():
                return name, partner, int(np.argmax(differ))
    return None


def _lengths(table: pa.Table, name: str) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = table.column(name).combine_chunks().value_lengths().to_numpy().astype(np.int64)
    return lengths


def _lists(values: Sequence[str] | NDArray[Any], counts: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Consecutive pieces of these lengths as lists; NaN becomes null where lists may hold nulls."""
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    element = kind.value_field
    flat = pa.array(values, type=element.type, from_pandas=element.nullable)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=kind)
