"""A folder on disk, of a recording or of a run: `meta.json` and Parquet files, hashed, and rules of their columns."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from shlex import quote
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_validator

from ..base.files import checked_json, place_of, shipped_names
from .errors import TraceFormatError

META = "meta.json"
REQUESTS = "requests.parquet"
NODES = "nodes.parquet"
ROUNDS = "rounds.parquet"
TRIE_FILES = (META, REQUESTS, NODES)
ROUNDS_FILES = (META, REQUESTS, ROUNDS)
_ALL_FILES = {*TRIE_FILES, *ROUNDS_FILES}

IMPORTED = "imported"


class _Kind(BaseModel):
    """The one key of `meta.json` that says how to read the rest."""

    model_config = ConfigDict(extra="ignore")

    kind: str


AnyMeta = TypeVar("AnyMeta", bound=BaseModel)


class StoredFolder(Generic[AnyMeta]):
    """A kind of folder: `meta.json`, with its record and the SHA-256 of each Parquet file.

    `files` has the Parquet files in the order of their names in `meta.json`; `indent` is spaces of the JSON.
    """

    def __init__(self, meta: type[AnyMeta], files: Sequence[str], *, indent: int = 2) -> None:
        self._meta, self.files, self._indent = meta, tuple(files), indent

        def names_all(stored: BaseModel) -> BaseModel:
            found: dict[str, str] = getattr(stored, "sha256")  # noqa: B009 - of the class that is being made
            if set(found) != set(files):
                names = (" and " if len(files) == 2 else ", ").join(files)
                raise ValueError(f"sha256 must name {names}, got {sorted(found)}")
            return stored

        validators: dict[str, Any] = {"names_all": model_validator(mode="after")(names_all)}
        self._stored: Any = create_model(
            f"Stored{meta.__name__}",
            __base__=meta,
            __validators__=validators,
            sha256=(dict[str, str], ...),
        )

    def write_meta(self, folder: Path, meta: AnyMeta) -> None:
        """Write `meta.json` into a folder that holds the files."""
        hashes = {name: hash_file(folder / name) for name in self.files}
        stored = self._stored(**meta.model_dump(), sha256=hashes)
        (folder / META).write_bytes(f"{stored.model_dump_json(indent=self._indent)}\n".encode())

    def read_meta(self, folder: Path) -> tuple[AnyMeta, dict[str, str]]:
        """The record, and the hash of each file; raises TraceFormatError."""
        stored = read_meta(folder / META, self._stored)
        return self._meta.model_validate(stored.model_dump(exclude={"sha256"})), stored.sha256


class Rule(NamedTuple):
    """A rule of a column: the field for the error, where it is broken `[N]`, the rule in words, and the values."""

    field: str
    broken: NDArray[np.bool_]
    words: str
    values: NDArray[Any]


def check_rules(path: Path, rules: Iterable[Rule], where: Callable[[int], str]) -> None:
    """Raise for the first row of the file at `path` that breaks the first broken rule; `where` names a row.

    Raises:
        TraceFormatError: naming field, rule, row and value.
    """
    for field, broken, words, values in rules:
        if broken.any():
            row = int(np.argmax(broken))
            value = values[row]
            plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            raise TraceFormatError(path, field, f"{words} ({where(row)})", plain)


def hash_file(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hash_of_file(file)


def hash_of_file(file: BufferedReader) -> str:
    """SHA-256 of an open file, read in pieces, from its position to its end."""
    return hashlib.file_digest(file, "sha256").hexdigest()


def size_of(path: Path | None, files: Iterable[str]) -> int | None:
    """Bytes of these files of a recording; None without a path: in memory only."""
    return None if path is None else sum((path / name).stat().st_size for name in files)


def check_folder(path: Path) -> None:
    """Raise TraceFormatError for a path that holds no recording; for a log it names the importer."""
    if path.is_dir():
        return
    if path.exists():
        raise _log_instead(path)
    named = ", ".join(sorted(shipped_names("recordings", ".trace")))
    rule = f"must be a .trace folder, or the name of a shipped one ({named})"
    if path.is_symlink():
        raise TraceFormatError(path, "trace", rule, "a link that leads nowhere")
    raise TraceFormatError(path, "trace", f"no such folder; {rule}", str(path))


def _log_instead(path: Path) -> TraceFormatError:
    """The error for a file, which names the importer if its content is a log's."""
    formats = vars(import_module(".importers.formats", __package__))  # importers are loaded only then
    try:
        known = formats["detect"]([path]) if path.is_file() else None  # a pipe is not read
    except (ValueError, OSError):
        known = None
    if known is None:
        rule = "must be a .trace folder; `paceline trace import` makes one of logs that it knows"
        return TraceFormatError(path, "trace", rule, "a file that is none of them")
    command = f"paceline trace import {known.name} {quote(str(path))} --out NAME.trace"
    return TraceFormatError(path, "trace", f"must be a .trace folder; `{command}` makes one of it", known.words)


def read_bytes(path: Path) -> bytes:
    """All of a file; raises TraceFormatError."""
    with _readable(path):
        return path.read_bytes()


def opened(path: Path) -> BufferedReader:
    """A file of a recording, to be closed by the caller; raises TraceFormatError."""
    with _readable(path):
        return path.open("rb")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into TraceFormatError."""
    try:
        yield
    except OSError as error:
        rule = "must be a readable file of the recording"
        raise TraceFormatError(path, "file", rule, error.strerror or type(error).__name__) from None


def kind_of(path: Path) -> str | None:
    """The kind of the recording at `path`; None where its `meta.json` has no sound one."""
    check_folder(path)
    try:
        return _Kind.model_validate_json(read_bytes(path / META)).kind
    except ValidationError:
        return None


def read_meta(path: Path, kind: type[AnyMeta]) -> AnyMeta:
    """`meta.json`, validated; raises TraceFormatError."""
    data = read_bytes(path)
    try:
        stored = kind.model_validate_json(data, strict=True)
        for field in ("format", "version", "kind"):
            if field not in stored.model_fields_set:
                raise TraceFormatError(path, field, "field required", "nothing")
        checked_json(path, TraceFormatError, content=data)  # of a repeated key pydantic takes the last
        return stored
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "content"
    rule, _, found = first["msg"].removeprefix("Value error, ").partition(", got ")
    rule = rule.removeprefix(f"`{field.rpartition('.')[2]}` ")  # the record may also be an argument
    whole = isinstance(first["input"], dict)  # a rule of several fields names their values itself
    value = "nothing" if first["type"] == "missing" else found if whole and found else first["input"]
    raise TraceFormatError(path, field, rule[:1].lower() + rule[1:], value)


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Turn errors of Parquet into TraceFormatError."""
    try:
        yield
    except TraceFormatError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceFormatError(path, "content", "must be a Parquet file", str(error)) from None


def read_table(path: Path, expected: str, schema: pa.Schema, *, may_lack: str = "") -> pa.Table:
    """A table of exactly this schema, without nulls, from a file of that hash; raises TraceFormatError.

    The column `may_lack` is optional: older files lack it.
    """
    data = read_bytes(path)
    if (found := hashlib.sha256(data).hexdigest()) != expected:
        raise TraceFormatError(path, "sha256", f"must be {expected} as {META} says", found)
    with parquet_errors(path):
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        table.validate(full=True)
    if may_lack and may_lack not in table.column_names:
        schema = schema.remove(schema.get_field_index(may_lack))
    check_schema(path, table.schema, schema)
    check_nulls(path, table, schema)
    return table


def check_schema(path: Path, found: pa.Schema, schema: pa.Schema) -> None:
    """Raise for other columns than these, or columns of other types."""
    missing = [name for name in schema.names if name not in found.names]
    if missing:
        raise TraceFormatError(path, missing[0], "must be a column of the file", found.names)
    unknown = [name for name in found.names if name not in schema.names]
    if unknown:
        raise TraceFormatError(path, unknown[0], "must not be there, it is no column of this format", unknown)
    if len(found.names) != len(schema.names):
        raise TraceFormatError(path, "content", "must hold each column once", found.names)
    for field in schema:
        kind = found.field(field.name).type
        if kind != field.type:
            raise TraceFormatError(path, field.name, f"must be of type {field.type}", str(kind))


def check_nulls(path: Path, table: pa.Table, schema: pa.Schema) -> None:
    """Raise for nulls where the schema, whose columns the table has, allows none."""
    for field in schema:
        column = table.column(field.name)
        nulls = 0 if field.nullable else column.null_count
        full = pa.types.is_list(field.type) and not field.type.value_field.nullable
        # `flatten` imports all functions of pyarrow.compute: it is called only where there is a null.
        if full and any(chunk.values.null_count for chunk in column.chunks):
            nulls += column.combine_chunks().flatten().null_count
        if nulls:
            raise TraceFormatError(path, field.name, "must hold no nulls", nulls)


def check_outside(path: Path) -> None:
    """Raise for a path within a recording, whose folder holds its own files and nothing else.

    Raises:
        TraceFormatError: a folder above `path` is a recording or a run log.
        OSError: `path` is a link that leads to itself.
    """
    for folder in place_of(path).parents:
        if (folder / META).is_file() and (folder / REQUESTS).is_file():
            raise TraceFormatError(path, "place", "must not lie inside a recording", str(folder))


def refuse_foreign(path: Path) -> None:
    """Raise rather than replace what is no recording, or write into one."""
    check_outside(path)
    if not path.exists():
        return
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else ["a file"]
    foreign = [name for name in names if name not in _ALL_FILES]
    if foreign:
        raise TraceFormatError(path, "trace", "must be free, or a recording to replace", foreign[0])
