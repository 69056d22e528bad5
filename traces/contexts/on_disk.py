"""A recording of contexts on the disk: `meta.json`, `requests.parquet` and `nodes.parquet`, tries read as needed.

A bad file is an error of one line that names it: hashes find cut or altered files, `check` the rest. The same recording
gives the same bytes. Reading and writing need memory for a few requests, not for the recording: a *batch* is a run of
requests with about `BATCH_NODES` nodes, of which the writer makes a row group, so that reading one request decodes one
small row group. Other files may have other row groups: reading a batch decodes all those it touches, of which the last
one is kept.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import overload
from weakref import finalize

import pyarrow as pa
import pyarrow.parquet as pq

from ...base.files import whole_folder
from ..errors import TraceFormatError
from ..folder import (
    IMPORTED,
    META,
    NODES,
    REQUESTS,
    StoredFolder,
    check_nulls,
    check_schema,
    hash_of_file,
    kind_of,
    opened,
    parquet_errors,
    read_table,
    refuse_foreign,
)
from .check import check_nodes, check_requests
from .columns import (
    REQUEST_SCHEMA,
    from_request_table,
    from_table,
    join,
    node_schema,
    parquet_writer,
    request_rows,
    to_request_table,
    to_table,
    tries,
)
from .meta import TrieMeta
from .recording import TrieRecording
from .trie import LazyRequest, RequestRow, Trie, TrieRequest

_FOLDER = StoredFolder(TrieMeta, (REQUESTS, NODES))
BATCH_NODES = 1 << 14
MOST_KEPT_NODES = 1 << 16  # of the batches read last: some 20 MB with three models


def batches(num_nodes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first request, the one after the last) of each batch: it ends with the request that fills it."""
    first, size = 0, 0
    for index, count in enumerate(num_nodes):
        size += count
        if size >= BATCH_NODES or index + 1 == len(num_nodes):
            yield first, index + 1
            first, size = index + 1, 0


class StoredNodes:
    """The tries of a recording's requests, each batch checked when it is read for the first time.

    The file stays open as long as this object exists, so that a recording written in its place is not mixed up with it.
    `requests` are checked; `sha256` is what the file must have.

    Raises:
        TraceFormatError: a file that cannot be read, of another hash, other columns, or another number of rows.
    """

    def __init__(self, path: Path, meta: TrieMeta, requests: Sequence[RequestRow], sha256: str) -> None:
        self._path, self._meta, self._requests, self._sha256 = path, meta, requests, sha256
        self._schema = node_schema(meta, path / META)
        handle = opened(path / NODES)
        finalize(self, handle.close)
        found = hash_of_file(handle)
        if found != sha256:
            raise TraceFormatError(path / NODES, "sha256", f"must be {sha256} as {META} says", found)
        with parquet_errors(path / NODES):
            self._file = pq.ParquetFile(handle)
            check_schema(path / NODES, self._file.schema_arrow, self._schema)
            self._group_rows = self._rows_of_groups()
        sizes = [request.num_nodes for request in requests]
        self._row = list(accumulate(sizes, initial=0))
        if self._row[-1] != self._group_rows[-1]:
            rule = f"of all requests must add up to the {self._group_rows[-1]} rows of {NODES}"
            raise TraceFormatError(path / REQUESTS, "num_nodes", rule, self._row[-1])
        self._batches = list(batches(sizes))
        self._batch_of = [number for number, (first, end) in enumerate(self._batches) for _ in range(first, end)]
        self._checked = [False] * len(self._batches)
        self._kept: OrderedDict[int, tuple[Trie, ...]] = OrderedDict()
        self._kept_nodes = 0
        self._last_group: tuple[int, pa.Table | None] = (-1, None)

    def __reduce__(self) -> tuple[type["StoredNodes"], tuple[object, ...]]:
        # Unpickling opens the same file and checks its hash again.
        return StoredNodes, (self._path.absolute(), self._meta, self._requests, self._sha256)

    def trie(self, request: int) -> Trie:
        """The trie of a request, by its index; raises TraceFormatError where its batch is not sound."""
        number = self._batch_of[request]
        if number not in self._kept:
            found = self._kept[number] = self._read(number)
            self._kept_nodes += sum(trie.num_nodes for trie in found)
            while self._kept_nodes > MOST_KEPT_NODES and len(self._kept) > 1:
                _, gone = self._kept.popitem(last=False)
                self._kept_nodes -= sum(trie.num_nodes for trie in gone)
        self._kept.move_to_end(number)
        return self._kept[number][request - self._batches[number][0]]

    def _read(self, number: int) -> tuple[Trie, ...]:
        first, end = self._batches[number]
        rows = self._requests[first:end]
        start, stop, parts = self._row[first], self._row[end], []
        for group, (begins, after) in enumerate(pairwise(self._group_rows)):
            if begins < stop and start < after:
                skipped = max(start - begins, 0)
                parts.append(self._group(group).slice(skipped, min(stop, after) - begins - skipped))
        codes = from_table(pa.concat_tables(parts).combine_chunks(), self._meta)
        if not self._checked[number]:
            check_nodes(codes, rows, self._meta, self._path, first_request=first, first_row=self._row[first])
            self._checked[number] = True
        return tries(codes, [row.num_nodes for row in rows])

    def _group(self, group: int) -> pa.Table:
        if self._last_group[0] != group:
            path = self._path / NODES
            with parquet_errors(path):
                table = self._file.read_row_group(group, use_threads=False)
                table.validate(full=True)
            check_nulls(path, table, self._schema)
            told = self._group_rows[group + 1] - self._group_rows[group]
            if len(table) != told:
                raise TraceFormatError(path, "content", f"must hold {told} rows in row group {group}", len(table))
            self._last_group = (group, table)
        found = self._last_group[1]
        assert found is not None
        return found

    def _rows_of_groups(self) -> list[int]:
        """The row each row group begins at, and the one after the last."""
        known = self._file.metadata
        counts = [known.row_group(group).num_rows for group in range(known.num_row_groups)]
        if min(counts, default=0) < 0 or sum(counts) != known.num_rows:
            rule = f"must hold {known.num_rows} rows, as it says"
            raise TraceFormatError(self._path / NODES, "content", rule, sum(counts))
        return list(accumulate(counts, initial=0))


MOST_KEPT_TOKENS = 1 << 18  # of the prompts of kept requests, some 10 MB


class StoredRequests(Sequence[TrieRequest]):
    """The requests of a stored recording, in file order; each is made when it is read, and the first are kept."""

    def __init__(self, rows: Sequence[RequestRow], nodes: StoredNodes) -> None:
        self._rows, self._nodes = rows, nodes
        self._made: dict[int, TrieRequest] = {}
        self._kept_tokens = 0

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> TrieRequest: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[TrieRequest, ...]: ...

    def __getitem__(self, index: int | slice) -> TrieRequest | tuple[TrieRequest, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = range(len(self))[index]
        made = self._made.get(place)
        if made is None:
            made = LazyRequest.of(self._rows[place], partial(self._nodes.trie, place))
            self._kept_tokens += len(made.prompt)
            if self._kept_tokens <= MOST_KEPT_TOKENS:
                self._made[place] = made
        return made


def write_trace(trace: TrieRecording, path: Path) -> None:
    """Write a recording, whole or not at all; a recording already there is replaced at the very end.

    Raises:
        TraceFormatError: the recording is not sound, or something that is no recording lies at `path`.
    """
    refuse_foreign(path)
    requests = request_rows(trace.requests)
    check_requests(requests, trace.meta, path)
    with whole_folder(path) as unfinished:
        table = to_request_table(requests)
        with parquet_writer(unfinished / REQUESTS, table.schema) as writer:
            writer.write_table(table)
        first_row = 0
        with parquet_writer(unfinished / NODES, node_schema(trace.meta, path / META)) as writer:
            for first, end in batches([row.num_nodes for row in requests]):  # a row group each
                codes = join(trace.requests[first:end], trace.meta, path, first_request=first)
                check_nodes(codes, requests[first:end], trace.meta, path, first_request=first, first_row=first_row)
                writer.write_table(to_table(codes, trace.meta, path), row_group_size=len(codes["request"]))
                first_row += len(codes["request"])
        _FOLDER.write_meta(unfinished, trace.meta)


def read_trace(path: Path) -> TrieRecording:
    """Open a recording: its metadata and requests are read and checked, nodes when a request's trie is read.

    Raises:
        TraceFormatError: anything about it is not sound; the message is one line. Errors of nodes are found when they
            are read: reading a trie raises it, too.
    """
    if kind_of(path) == IMPORTED:
        rule = (
            "must be recorded or synthetic here; an imported recording holds rounds, not contexts: `paceline compare`"
        )
        raise TraceFormatError(path, "kind", f"{rule} takes it", IMPORTED)
    meta, sha256 = _FOLDER.read_meta(path)
    rows = from_request_table(read_table(path / REQUESTS, sha256[REQUESTS], REQUEST_SCHEMA, may_lack="session"))
    check_requests(rows, meta, path)
    return TrieRecording(meta=meta, requests=StoredRequests(rows, StoredNodes(path, meta, rows, sha256[NODES])))
