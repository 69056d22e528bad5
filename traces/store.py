"""Write and read a recording: a directory of `meta.json`, `requests.parquet` and `nodes.parquet`.

A file is refused with one line that names it, or it is sound: hashes tell of cut or altered files, `validate` of the
rest. The same trace gives the same bytes.
"""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError, model_validator

from .columns import NODES, REQUESTS, NodeColumns, RequestColumns, join, request_columns, tries
from .errors import TraceFormatError
from .meta import TraceMeta
from .schema import REQUEST_SCHEMA, from_request_table, from_table, node_schema, to_parquet, to_request_table, to_table
from .trie import RequestRecord, Trace
from .validate import check_nodes, check_requests

META = "meta.json"
FILES = (META, REQUESTS, NODES)


class StoredMeta(TraceMeta):
    """`meta.json` as it lies on the disk.

    Attributes:
        sha256: of each of the two Parquet files.
    """

    sha256: dict[str, str]

    @model_validator(mode="after")
    def _both_files(self) -> "StoredMeta":
        if set(self.sha256) != {REQUESTS, NODES}:
            raise ValueError(f"sha256 must name {REQUESTS} and {NODES}, got {sorted(self.sha256)}")
        return self


def write_trace(trace: Trace, path: Path) -> None:
    """Write a recording, whole or not at all; a trace already there is replaced at the very end.

    Raises:
        TraceFormatError: the trace is not sound, or something that is no trace lies at `path`.
    """
    _refuse_foreign(path)
    requests = request_columns(trace)
    check_requests(requests, trace.meta, path)
    nodes = join(trace, path)
    check_nodes(nodes, requests, trace.meta, path)
    files = {
        REQUESTS: to_parquet(to_request_table(requests)),
        NODES: to_parquet(to_table(nodes, trace.meta, path / META)),
    }
    stored = StoredMeta(**trace.meta.model_dump(), sha256={name: _sha256(data) for name, data in files.items()})
    files[META] = f"{stored.model_dump_json(indent=2)}\n".encode()
    with _replacing(path) as unfinished:
        for name, data in files.items():
            (unfinished / name).write_bytes(data)


def read_trace(path: Path) -> Trace:
    """Read a recording.

    Raises:
        TraceFormatError: anything about it is not sound; the message is one line.
    """
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing there"
        raise TraceFormatError(path, "trace", "must be a directory", found)
    stored = _read_meta(path / META)
    meta = TraceMeta.model_validate(stored.model_dump(exclude={"sha256"}))
    request_table = _read_table(path / REQUESTS, stored, REQUEST_SCHEMA)
    node_table = _read_table(path / NODES, stored, node_schema(meta, path / META))
    requests = from_request_table(request_table)
    check_requests(requests, meta, path)
    nodes = from_table(node_table, meta)
    check_nodes(nodes, requests, meta, path)
    return _trace(meta, requests, nodes)


def _trace(meta: TraceMeta, requests: RequestColumns, nodes: NodeColumns) -> Trace:
    rows = zip(
        requests.request_id,
        requests.tag,
        requests.prompt,
        requests.max_new_tokens,
        tries(nodes, requests.num_nodes),
        strict=True,
    )
    records = (
        RequestRecord(
            request_id=request_id, tag=tag, prompt=tuple(prompt.tolist()), max_new_tokens=max_new_tokens, trie=trie
        )
        for request_id, tag, prompt, max_new_tokens, trie in rows
    )
    return Trace(meta=meta, requests=tuple(records))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        rule = "must be a readable file of the trace"
        raise TraceFormatError(path, "file", rule, error.strerror or type(error).__name__) from None


def _read_meta(path: Path) -> StoredMeta:
    data = _read_bytes(path)
    try:
        stored = StoredMeta.model_validate_json(data, strict=True)
        for field in ("format", "version"):
            if field not in stored.model_fields_set:
                raise TraceFormatError(path, field, "field required", "nothing")
        return stored
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "content"
    rule, _, found = first["msg"].removeprefix("Value error, ").partition(", got ")
    value = "nothing" if first["type"] == "missing" else found or first["input"]
    raise TraceFormatError(path, field, rule[:1].lower() + rule[1:], value)


def _read_table(path: Path, stored: StoredMeta, schema: pa.Schema) -> pa.Table:
    """A table of exactly this schema, without nulls, from a file with the hash that `meta.json` gives."""
    data = _read_bytes(path)
    expected, found = stored.sha256[path.name], _sha256(data)
    if found != expected:
        raise TraceFormatError(path, "sha256", f"must be {expected} as {META} says", found)
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceFormatError(path, "content", "must be a Parquet file", str(error)) from None
    _check_schema(path, table, schema)
    return table


def _check_schema(path: Path, table: pa.Table, schema: pa.Schema) -> None:
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise TraceFormatError(path, missing[0], "must be a column of the file", table.column_names)
    unknown = [name for name in table.column_names if name not in schema.names]
    if unknown:
        raise TraceFormatError(path, unknown[0], "must not be there, it is no column of this format", unknown)
    if len(table.column_names) != len(schema.names):
        raise TraceFormatError(path, "content", "must hold each column once", table.column_names)
    for field in schema:
        column = table.column(field.name)
        if column.type != field.type:
            raise TraceFormatError(path, field.name, f"must be of type {field.type}", str(column.type))
        values = column.combine_chunks().flatten() if pa.types.is_list(field.type) else column
        if column.null_count or values.null_count:
            raise TraceFormatError(path, field.name, "must hold no nulls", column.null_count or values.null_count)


def _refuse_foreign(path: Path) -> None:
    """Refuse to replace what is no trace."""
    if not path.exists():
        return
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else ["a file"]
    foreign = [name for name in names if name not in FILES]
    if foreign:
        raise TraceFormatError(path, "trace", "must be free, or a trace to replace", foreign[0])


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A fresh directory beside `path` that takes its place if the block ends well, and vanishes if not."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{token_hex(4)}.part")
    former = path.with_name(f".{path.name}.{token_hex(4)}.old.part")
    unfinished.mkdir()
    try:
        yield unfinished
        if path.exists():
            path.rename(former)
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if former.exists() and not path.exists():
            former.rename(path)
        shutil.rmtree(former, ignore_errors=True)
