"""The Parquet side of an imported recording: columns, their types, and tables to arrays and back.

Letters: R rounds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .columns import RoundsColumns


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
    [
        pa.field("start", pa.int32(), nullable=False),
        pa.field("accepted", pa.int32(), nullable=False),
        pa.field("drafted", pa.int32(), nullable=False),
        pa.field("draft_s", pa.float64()),
        pa.field("verify_s", pa.float64()),
        pa.field("placed", pa.bool_(), nullable=False),
    ]
)
# Recordings made before rounds could be placed; none of theirs was.
UNPLACED_ROUNDS_SCHEMA = ROUNDS_SCHEMA.remove(ROUNDS_SCHEMA.get_field_index("placed"))


def parquet_writer(path: str, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of row groups; the same tables give the same bytes."""
    return pq.ParquetWriter(path, schema, compression="zstd", compression_level=3, store_schema=False)


def request_table(columns: RoundsColumns) -> pa.Table:
    """The table of validated requests."""
    lists: dict[str, tuple[Sequence[str] | NDArray[Any], NDArray[np.int64]]] = {
        "prompt": (columns.prompt, columns.num_prompt),
        "output": (columns.output, columns.num_output),
        "methods": (columns.method, columns.num_methods),
        "num_tokens": (columns.num_tokens, columns.num_methods),
        "wall_s": (columns.wall_s, columns.num_methods),
        "prefill_s": (columns.prefill_s, columns.num_methods),
        "drafters": (columns.drafter, columns.num_drafters),
        "num_rounds": (columns.num_rounds, columns.num_drafters),
    }
    arrays = [
        pa.array(columns.request_id, type=pa.string()),
        pa.array(columns.tag, type=pa.string()),
        pa.array(columns.prompt_tokens, type=pa.int32()),
        *(_lists(*pair, ROUNDS_REQUEST_SCHEMA.field(name).type) for name, pair in lists.items()),
    ]
    return pa.table(arrays, schema=ROUNDS_REQUEST_SCHEMA)


def rounds_table(columns: RoundsColumns) -> pa.Table:
    """The table of validated rounds; seconds that are unknown are null."""
    size = len(columns.start)
    arrays = [pa.array(values) for values in (columns.start, columns.accepted, columns.drafted)]
    for seconds in (columns.draft_s, columns.verify_s):
        unknown = pa.nulls(size, pa.float64())
        arrays.append(unknown if seconds is None else pa.array(seconds, from_pandas=True))
    arrays.append(pa.array(np.zeros(size, np.bool_) if columns.placed is None else columns.placed))
    return pa.table(arrays, schema=ROUNDS_SCHEMA)


def request_arrays(table: pa.Table) -> dict[str, Any]:
    """All fields of `RoundsColumns` but those of the rounds, from a table of the right schema, not validated yet.

    The counts of `num_tokens`, `wall_s`, `prefill_s` and `num_rounds` must be those of `methods` and `drafters`:
    `misaligned` tells.
    """
    lists = {
        field.name: table.column(field.name).combine_chunks()
        for field in ROUNDS_REQUEST_SCHEMA
        if pa.types.is_list(field.type)
    }
    counts = {name: array.value_lengths().to_numpy().astype(np.int64) for name, array in lists.items()}
    values = {name: array.flatten() for name, array in lists.items()}
    numbers = {
        name: values[name].to_numpy().astype(np.int64) for name in ("prompt", "output", "num_tokens", "num_rounds")
    }
    return {
        "request_id": table.column("id").to_pylist(),
        "tag": table.column("tag").to_pylist(),
        "prompt_tokens": table.column("prompt_tokens").to_numpy().astype(np.int64),
        **numbers,
        "num_prompt": counts["prompt"],
        "num_output": counts["output"],
        "num_methods": counts["methods"],
        "method": values["methods"].to_pylist(),
        "wall_s": values["wall_s"].to_numpy(zero_copy_only=False),
        "prefill_s": values["prefill_s"].to_numpy(zero_copy_only=False),
        "num_drafters": counts["drafters"],
        "drafter": values["drafters"].to_pylist(),
    }


def misaligned(table: pa.Table) -> tuple[str, str, int] | None:
    """The first list column, its partner and the row where the two differ in length; None if none does."""
    partners = {"num_tokens": "methods", "wall_s": "methods", "prefill_s": "methods", "num_rounds": "drafters"}
    for name, partner in partners.items():
        one, other = (table.column(column).combine_chunks().value_lengths().to_numpy() for column in (name, partner))
        if (one != other).any():
            return name, partner, int(np.argmax(one != other))
    return None


def _lists(values: Sequence[str] | NDArray[Any], counts: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Consecutive pieces of these lengths as lists; NaN becomes null where lists may hold nulls."""
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    element = kind.value_field
    flat = pa.array(values, type=element.type, from_pandas=element.nullable)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=kind)
