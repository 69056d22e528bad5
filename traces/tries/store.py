"""Write and read a recording: a directory of `meta.json`, `requests.parquet` and `nodes.parquet`.

A file is refused with one line that names it, or it is sound: hashes tell of cut or altered files, `validate` of the
rest. The same recording gives the same bytes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...whole_files import whole_folder
from ..errors import TraceFormatError
from ..folder import (
    IMPORTED,
    META,
    NODES,
    REQUESTS,
    Hashed,
    hash_of,
    kind_of,
    read_meta,
    read_table,
    refuse_foreign,
)
from .columns import NodeColumns, RequestRow, join, request_rows, tries
from .meta import TrieMeta
from .recording import TrieRecording
from .schema import REQUEST_SCHEMA, from_request_table, from_table, node_schema, to_parquet, to_request_table, to_table
from .trie import TrieRequest
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
    nodes = join(trace, path)
    check_nodes(nodes, requests, trace.meta, path)
    files = {
        REQUESTS: to_parquet(to_request_table(requests)),
        NODES: to_parquet(to_table(nodes, trace.meta, path / META)),
    }
    stored = StoredMeta(**trace.meta.model_dump(), sha256={name: hash_of(data) for name, data in files.items()})
    files[META] = f"{stored.model_dump_json(indent=2)}\n".encode()
    with whole_folder(path) as unfinished:
        for name, data in files.items():
            (unfinished / name).write_bytes(data)


def read_trace(path: Path) -> TrieRecording:
    """Read a recording.

    Raises:
        TraceFormatError: anything about it is not sound; the message is one line.
    """
    if kind_of(path) == IMPORTED:
        rule = (
            "must be recorded or synthetic here; an imported recording holds rounds, not contexts: `paceline compare`"
        )
        raise TraceFormatError(path, "kind", f"{rule} takes it", IMPORTED)
    stored = read_meta(path / META, StoredMeta)
    meta = TrieMeta.model_validate(stored.model_dump(exclude={"sha256"}))
    request_table = read_table(path / REQUESTS, stored.sha256[REQUESTS], REQUEST_SCHEMA)
    node_table = read_table(path / NODES, stored.sha256[NODES], node_schema(meta, path / META))
    requests = from_request_table(request_table)
    check_requests(requests, meta, path)
    nodes = from_table(node_table, meta)
    check_nodes(nodes, requests, meta, path)
    return TrieRecording(meta=meta, requests=tuple(_requests(requests, nodes)))


def _requests(rows: Sequence[RequestRow], nodes: NodeColumns) -> Iterator[TrieRequest]:
    for row, trie in zip(rows, tries(nodes, [row.num_nodes for row in rows]), strict=True):
        yield TrieRequest(
            request_id=row.request_id,
            tag=row.tag,
            prompt=tuple(row.prompt.tolist()),
            max_new_tokens=row.max_new_tokens,
            trie=trie,
        )
