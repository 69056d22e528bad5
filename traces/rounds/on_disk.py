"""Write and read an imported recording: a directory of `meta.json`, `requests.parquet` and `rounds.parquet`.

Writing streams: requests are gathered into row groups, so that memory is bounded for any number. The same recording
gives the same bytes.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...base.files import whole_folder
from ..errors import TraceFormatError
from ..folder import (
    IMPORTED,
    REQUESTS,
    ROUNDS,
    StoredFolder,
    kind_of,
    read_table,
    refuse_foreign,
)
from .check import RoundsCheck
from .columns import (
    ROUNDS_REQUEST_SCHEMA,
    ROUNDS_SCHEMA,
    RoundsColumns,
    gather,
    misaligned,
    parquet_writer,
    request_arrays,
    request_table,
    rounds_requests,
    rounds_table,
)
from .recording import RoundsRecording
from .rounds import KINDS, UNKNOWN, Rounds, RoundsMeta, RoundsRequest, is_known

# Rounds and token ids of one row group: some 50 MB while it is built.
_GROUP = 2**20
_MOST_REQUESTS = 2**14


_FOLDER = StoredFolder(RoundsMeta, (REQUESTS, ROUNDS))


def write_rounds(requests: Iterable[RoundsRequest], meta: Callable[[], RoundsMeta], path: Path) -> RoundsMeta:
    """Write an imported recording, whole or not at all; a recording already there is replaced at the very end.

    `requests` are taken one by one; if they raise, nothing written is kept. `meta` is called after the last request, as
    an importer has drafters and windows only then.

    Raises:
        TraceFormatError: the recording is not sound, or something that is no recording lies at `path`.
    """
    refuse_foreign(path)
    check = RoundsCheck(path)
    with whole_folder(path) as unfinished:
        with (
            parquet_writer(str(unfinished / REQUESTS), ROUNDS_REQUEST_SCHEMA) as request_file,
            parquet_writer(str(unfinished / ROUNDS), ROUNDS_SCHEMA) as rounds_file,
        ):
            for group in _groups(requests):
                columns = gather(group, path)
                check.add(columns)
                request_file.write_table(_requests_of(columns, path))
                rounds_file.write_table(rounds_table(columns.rounds))
        learned = meta()
        check.finish(learned)
        _FOLDER.write_meta(unfinished, learned)
    return learned


def read_rounds(path: Path) -> RoundsRecording:
    """Read an imported recording.

    Raises:
        TraceFormatError: anything about it is not sound; the message is one line.
    """
    kind = kind_of(path)
    if kind not in (None, IMPORTED):
        raise TraceFormatError(path, "kind", f"must be {IMPORTED} here", kind)
    meta, sha256 = _FOLDER.read_meta(path)
    table = read_table(path / REQUESTS, sha256[REQUESTS], ROUNDS_REQUEST_SCHEMA, may_lack="session")
    odd = misaligned(table)
    if odd is not None:
        name, partner, row = odd
        request_id = table.column("id")[row].as_py()
        rule = f"must hold one entry per entry of {partner} (request {request_id!r})"
        raise TraceFormatError(path / REQUESTS, name, rule, table.column(name)[row].as_py())
    requests = request_arrays(table)
    rounds = _read_rounds(path / ROUNDS, sha256[ROUNDS], requests["num_rounds"])
    columns = RoundsColumns(**requests, rounds=rounds)
    check = RoundsCheck(path)
    check.add(columns)
    check.finish(meta)
    return RoundsRecording(meta=meta, requests=tuple(rounds_requests(columns)))


def _groups(requests: Iterable[RoundsRequest]) -> Iterator[list[RoundsRequest]]:
    """The requests in groups that each fill about one row group."""
    group: list[RoundsRequest] = []
    size = 0
    for request in requests:
        group.append(request)
        size += len(request.prompt) + len(request.output)
        size += sum(rounds.start.size for rounds in request.rounds.values())
        if size >= _GROUP or len(group) >= _MOST_REQUESTS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _requests_of(columns: RoundsColumns, path: Path) -> pa.Table:
    try:
        return request_table(columns)
    except UnicodeEncodeError as error:
        rule = "must be text that UTF-8 can hold"
        raise TraceFormatError(path / REQUESTS, "id, tag, session or name", rule, error.object) from None


def _read_rounds(path: Path, sha256: str, num_rounds: NDArray[np.int64]) -> Rounds:
    table = read_table(path, sha256, ROUNDS_SCHEMA, may_lack="placed")
    if (num_rounds < 0).any() or num_rounds.sum() != len(table):
        rule = f"of all requests must be >= 0 and add up to the {len(table)} rows of {ROUNDS}"
        raise TraceFormatError(path.with_name(REQUESTS), "num_rounds", rule, int(num_rounds.sum()))
    found: dict[str, Any] = {}
    for name in table.column_names:
        column = table.column(name)
        values = column.to_numpy().astype(KINDS[name], copy=False)
        # Unknown seconds are null: each recording has one form.
        if values.dtype == np.float64 and np.isnan(values).sum() > column.null_count:
            raise TraceFormatError(path, name, "must be null where unknown", float("nan"))
        if name not in UNKNOWN or is_known(values).any():
            found[name] = values
    return Rounds(**found)
