"""A profile in memory and as one Parquet file: a row per measured shape, what it says of itself in the header.

Letters: S measured shapes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from ..machine import kept_folder
from ..traces.errors import TraceFormatError
from ..whole_files import whole_file
from .meta import ProfileMeta

ENDING = ".profile"
_KEY = b"paceline"


class Shape(NamedTuple):
    """A measured forward.

    Attributes:
        member: whose.
        rows: requests in it, >= 1.
        new_tokens: fed for each row, >= 1.
        context_tokens: held by each row before, >= 0.
        seconds: median of its repeats.
        spread: half of the range between the quartiles, as a share of the median.
    """

    member: str
    rows: int
    new_tokens: int
    context_tokens: int
    seconds: float
    spread: float

    @property
    def key(self) -> tuple[str, int, int, int]:
        """Which shape it is, whatever it took."""
        return self[:4]


SCHEMA = pa.schema(
    [
        pa.field("member", pa.string(), nullable=False),
        pa.field("rows", pa.int32(), nullable=False),
        pa.field("new_tokens", pa.int32(), nullable=False),
        pa.field("context_tokens", pa.int32(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("spread", pa.float64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Seconds measured on one machine.

    Attributes:
        meta: whose they are.
        shapes: `[S]` every member's forwards.
        file: that it was read from; None of one that was just measured. No part of what makes two profiles equal.
    """

    meta: ProfileMeta
    shapes: tuple[Shape, ...]
    file: Path | None = field(default=None, compare=False)

    def of(self, member: str) -> tuple[Shape, ...]:
        """The shapes of one member."""
        return tuple(shape for shape in self.shapes if shape.member == member)


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile, whole or not at all; raises OSError naming `path`."""
    columns = [
        pa.array(values, field.type) for values, field in zip(zip(*profile.shapes, strict=True), SCHEMA, strict=True)
    ]
    table = pa.Table.from_arrays(columns, schema=SCHEMA.with_metadata({_KEY: profile.meta.model_dump_json()}))
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        pq.write_table(table, part)


def read_profile(path: Path) -> Profile:
    """A profile from its file.

    Raises:
        TraceFormatError: no such file, or one that breaks the format; one line.
    """
    if not path.is_file():
        raise TraceFormatError(path, "profile", "must be a file", "a directory" if path.is_dir() else "nothing there")
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise TraceFormatError(path, "profile", "must be a Parquet file", str(error)) from None
    meta = _meta_of(path, table.schema)
    if not table.schema.equals(SCHEMA) or any(column.null_count for column in table.columns):
        raise TraceFormatError(path, "columns", f"must be {', '.join(SCHEMA.names)}, without nulls", table.schema.names)
    shapes = tuple(Shape(**row) for row in table.to_pylist())
    _check(path, meta, shapes)
    return Profile(meta=meta, shapes=shapes, file=path)


def profiles_folder() -> Path:
    """Where profiles of this machine are kept."""
    return kept_folder() / "profiles"


def profiles_here(processor: str) -> Iterator[tuple[Path, ProfileMeta | TraceFormatError]]:
    """Files of profiles that were kept on this machine and what each says of itself, or why it cannot; newest first.

    One that cannot say it has its place by when the file was written.
    """
    found: list[tuple[datetime, Path, ProfileMeta | TraceFormatError]] = []
    for path in profiles_folder().glob(f"*{ENDING}"):
        try:
            meta = _meta_of(path, pq.read_schema(path))
        except TraceFormatError as error:
            found.append((_written_at(path), path, error))
        except (OSError, pa.ArrowException) as error:
            refused = TraceFormatError(path, "profile", "must be a Parquet file", str(error))
            found.append((_written_at(path), path, refused))
        else:
            if meta.processor == processor:
                found.append((meta.measured_at, path, meta))
    yield from ((path, said) for _, path, said in sorted(found, key=lambda one: one[:2], reverse=True))


def _written_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.lstat().st_mtime, UTC)


def _meta_of(path: Path, schema: pa.Schema) -> ProfileMeta:
    header = (schema.metadata or {}).get(_KEY)
    if header is None:
        raise TraceFormatError(path, "profile", "must have the header of a profile", "none")
    try:
        return ProfileMeta.model_validate_json(header)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or "header"
        raise TraceFormatError(path, field, first["msg"], first["input"]) from None


def _check(path: Path, meta: ProfileMeta, shapes: tuple[Shape, ...]) -> None:
    members = {member.name for member in meta.members}
    seen = set()
    for shape in shapes:
        if shape.member not in members:
            raise TraceFormatError(path, "member", f"must be one of {', '.join(sorted(members))}", shape.member)
        if shape.rows < 1 or shape.new_tokens < 1 or shape.context_tokens < 0 or not 0 < shape.seconds < float("inf"):
            raise TraceFormatError(path, "shape", "must have rows, tokens and seconds that can be", tuple(shape))
        if shape[:4] in seen:
            raise TraceFormatError(path, "shape", "must be there once", shape[:4])
        seen.add(shape[:4])
    missing = members - {shape.member for shape in shapes}
    if missing:
        raise TraceFormatError(path, "member", "must have measured shapes", sorted(missing)[0])
