"""The Parquet side of a recording: column names, their types, and tables to arrays and back.

Letters: N nodes of some requests, M recorded models (smallest first), P pairs of models.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...arguments import repeated
from ..errors import TraceFormatError
from .columns import NodeColumns, RequestRow
from .features.columns import layout, schema_fields
from .meta import TrieMeta
from .stored_resolution import GRIDS

REQUEST_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("prompt", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("max_new_tokens", pa.int32(), nullable=False),
        pa.field("num_nodes", pa.int32(), nullable=False),
    ]
)
_SMALL_VOCABULARY = 65536
_RANKS = ("rank", "ranked")
_FLAT_TYPES = {"request": pa.int32(), "parent": pa.int32(), "depth": pa.int32(), "on_trunk": pa.bool_()}


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """A new Parquet file; the same tables give the same bytes. Closed at the end of the block, whole or not.

    Bytes of codes split into streams pack best by far: 49 bytes a node for four models, against 62 with dictionaries
    and 61 plain. Higher zstd levels win 2% more and cost seconds. Parents run along paths, so their differences pack.
    """
    encodings = {
        field.name: "DELTA_BINARY_PACKED" if field.name == "parent" else "BYTE_STREAM_SPLIT"
        for field in schema
        if pa.types.is_integer(field.type)
    }
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=9,
        use_dictionary=False,
        column_encoding=encodings,
        store_schema=False,
    ) as writer:
        yield writer


def node_schema(meta: TrieMeta, path: Path) -> pa.Schema:
    """Columns of `nodes.parquet`; raises TraceFormatError where model names make two columns the same."""
    fields = [pa.field(name, kind, nullable=False) for name, _, _, kind in _layout(meta)] + schema_fields(meta)
    doubles = sorted(set(repeated(field.name for field in fields)))
    if doubles:
        raise TraceFormatError(path, "models", "names must give different column names", doubles)
    return pa.schema(fields)


def to_request_table(requests: Sequence[RequestRow]) -> pa.Table:
    """The table of validated requests."""
    columns = zip(zip(*requests, strict=True), REQUEST_SCHEMA, strict=True)
    return pa.table([pa.array(values, type=field.type) for values, field in columns], schema=REQUEST_SCHEMA)


def from_request_table(table: pa.Table) -> list[RequestRow]:
    """The requests of a table of the right schema, not validated yet."""
    prompts = table.column("prompt").combine_chunks()
    ends = np.cumsum(prompts.value_lengths().to_numpy())
    tokens = prompts.flatten().to_numpy().astype(np.int64)
    known = table.drop_columns(["prompt"]).to_pydict()
    prompt = np.split(tokens, ends[:-1])
    return list(map(RequestRow, known["id"], known["tag"], prompt, known["max_new_tokens"], known["num_nodes"]))


def to_table(columns: NodeColumns, meta: TrieMeta, path: Path) -> pa.Table:
    """The table of validated columns. A root has no token; its cell holds 0."""
    arrays = []
    for name, attribute, row, kind in _layout(meta):
        array = getattr(columns, attribute) if row is None else getattr(columns, attribute)[row]
        if name == "token":
            array = np.maximum(array, 0)
        arrays.append(pa.array(array.astype(kind.to_pandas_dtype(), copy=False)))
    arrays += [pa.array(columns.further[column.name]) for column in layout(meta)]
    return pa.table(arrays, schema=node_schema(meta, path))


def from_table(table: pa.Table, meta: TrieMeta) -> NodeColumns:
    """The columns of a table of the right schema, not validated yet."""
    arrays: dict[str, Any] = {}
    rows: dict[str, list[NDArray[Any]]] = {name: [] for name in ("next_token", *GRIDS, *_RANKS, "branch_log_prob")}
    for name, attribute, row, _ in _layout(meta):
        array = table.column(name).to_numpy()
        if row is None:
            arrays[attribute] = array
        else:
            rows[attribute].append(array)
    if meta.sampling.mode == "greedy":
        rows["top_log_prob"] = rows["next_log_prob"]
        own = [rows["own_log_prob"][model] for model in meta.tree_drafters]
        rows["branch_log_prob"] = [np.where(rank < 0, 0, log) for rank, log in zip(rows["rank"], own, strict=True)]
    for attribute, parts in rows.items():
        kind = np.int32 if attribute in ("next_token", *_RANKS) else np.uint16
        arrays[attribute] = np.stack(parts).astype(kind) if parts else np.empty((0, len(table)), kind)
    token = arrays["token"].astype(np.int32)
    arrays["token"] = np.where((arrays["parent"] == -1) & (token == 0), -1, token).astype(np.int32)
    return NodeColumns(**arrays, further={one.name: table.column(one.name).to_numpy() for one in layout(meta)})


def _layout(meta: TrieMeta) -> Iterator[tuple[str, str, int | None, pa.DataType]]:
    """Column name, attribute of `NodeColumns`, row of that attribute (None if flat) and type, in file order."""
    token_type = pa.uint16() if meta.vocab_size <= _SMALL_VOCABULARY else pa.int32()
    for name, kind in _FLAT_TYPES.items():
        yield name, name, None, kind
    yield "token", "token", None, token_type
    for row, model in enumerate(meta.model_names):
        yield f"{model}.next_token", "next_token", row, token_type
        for attribute in GRIDS:
            coded_apart = attribute != "top_log_prob" or meta.sampling.mode == "coupled"
            if attribute != "tvd" and coded_apart:
                yield f"{model}.{attribute}", attribute, row, pa.uint16()
    for row, (low, high) in enumerate(meta.pairs):
        yield f"tvd.{meta.model_names[low]}.{meta.model_names[high]}", "tvd", row, pa.uint16()
    for row, place in enumerate(meta.tree_drafters):
        model = meta.model_names[place]
        for attribute in _RANKS:
            yield f"{model}.{attribute}", attribute, row, pa.int16()
        if meta.sampling.mode == "coupled":
            yield f"{model}.branch_log_prob", "branch_log_prob", row, pa.uint16()
