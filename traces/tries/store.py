"""Write and read a recording: a directory of `meta.json`, `requests.parquet` and `nodes.parquet`.

A file is refused with one line that names it, or it is sound: hashes tell of cut or altered files, `validate` of the
rest. The same recording gives the same bytes. Both ways memory follows a few requests, not the recording.
"""

from collections.abc import Sequence
from pathlib import Path

from ...whole_files import whole_folder
from ..errors import TraceFormatError
from ..folder import (
    IMPORTED,
    META,
    NODES,
    REQUESTS,
    Hashed,
    hash_file,
    kind_of,
    read_meta,
    read_table,
    refuse_foreign,
)
from .columns import RequestRow, join, request_rows
from .meta import TrieMeta
from .recording import TrieRecording
from .schema import (
    REQUEST_SCHEMA,
    from_request_table,
    node_schema,
    parquet_writer,
    to_request_table,
    to_table,
)
from .stored_requests import StoredNodes, StoredRequests, batches
from .validate import check_nodes, check_requests


class StoredMeta(Hashed, TrieMeta):
    """`meta.json` as it lies on the disk."""

    hashed = (REQUESTS, NODES)


def write_trace(trace: TrieRecording, path: Path) -> None:
    """Write a recording, whole or not at all; a recording already there is replaced at the very end.

    Raises:
        TraceFormatError: the recording is not sound, or something that is no recording lies at `path`.
    """
    refuse_foreign(path)
    requests = request_rows(trace.requests)
    check_requests(requests, trace.meta, path)
    with whole_folder(path) as unfinished:
        with parquet_writer(unfinished / REQUESTS, REQUEST_SCHEMA) as writer:
            writer.write_table(to_request_table(requests))
        _write_nodes(trace, requests, path, unfinished / NODES)
        hashes = {name: hash_file(unfinished / name) for name in (REQUESTS, NODES)}
        stored = StoredMeta(**trace.meta.model_dump(), sha256=hashes)
        (unfinished / META).write_bytes(f"{stored.model_dump_json(indent=2)}\n".encode())


def _write_nodes(trace: TrieRecording, rows: Sequence[RequestRow], path: Path, file: Path) -> None:
    """A row group of each batch of requests; errors name the recording at `path`."""
    first_row = 0
    with parquet_writer(file, node_schema(trace.meta, path / META)) as writer:
        for first, end in batches([row.num_nodes for row in rows]):
            columns = join(trace.requests[first:end], trace.meta, path, first_request=first)
            check_nodes(columns, rows[first:end], trace.meta, path, first_request=first, first_row=first_row)
            writer.write_table(to_table(columns, trace.meta, path), row_group_size=len(columns.request))
            first_row += len(columns.request)


def read_trace(path: Path) -> TrieRecording:
    """Open a recording: its metadata and requests are read and checked, nodes when somebody asks for a request's trie.

    Raises:
        TraceFormatError: anything about it is not sound; the message is one line. What is wrong with nodes is found
            when they are read: asking for a trie raises it, too.
    """
    if kind_of(path) == IMPORTED:
        rule = (
            "must be recorded or synthetic here; an imported recording holds rounds, not contexts: `paceline compare`"
        )
        raise TraceFormatError(path, "kind", f"{rule} takes it", IMPORTED)
    stored = read_meta(path / META, StoredMeta)
    meta = TrieMeta.model_validate(stored.model_dump(exclude={"sha256"}))
    rows = from_request_table(read_table(path / REQUESTS, stored.sha256[REQUESTS], REQUEST_SCHEMA))
    check_requests(rows, meta, path)
    return TrieRecording(meta=meta, requests=StoredRequests(rows, StoredNodes(path, meta, rows, stored.sha256[NODES])))
