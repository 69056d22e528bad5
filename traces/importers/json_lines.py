"""Read files of JSON, one object a line or one in all, plain or gzip: an object with its place, or one clear error."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import TraceFormatError
from ..strict_json import decode_json, kind_of_json
from .fields import Fields

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_objects(path: Path) -> Iterator[Fields]:
    """The JSON objects of a file, one a line; blank lines are passed over.

    Raises:
        TraceFormatError: the file cannot be read, a line is no JSON object, or there is none at all.
    """
    empty = True
    lines = _lines(path)
    for number, line in lines:
        empty = False
        try:
            values = _decode(line)
        except ValueError as error:
            last = " (the file's last line: is it cut?)" if next(lines, None) is None else ""
            raise TraceFormatError(
                f"{path}: line {number}", "JSON", f"must be one JSON object{last}", str(error)
            ) from None
        yield Fields(f"{path}: line {number}", values)
    if empty:
        raise _nothing_in(path)


def read_object(path: Path) -> Fields:
    """The one JSON object of a file, over as many lines as it likes; raises TraceFormatError as `read_objects`."""
    text = b"\n".join(line for _, line in _lines(path))
    if not text:
        raise _nothing_in(path)
    try:
        return Fields(str(path), _decode(text))
    except ValueError as error:
        raise TraceFormatError(path, "JSON", "must be one JSON object", str(error)) from None


def first_object(path: Path) -> Fields:
    """The first object of a file, whether it stands on one line or on many.

    Raises:
        TraceFormatError: as `read_objects`, and for what can be read only once, since whoever looks ahead reads again.
    """
    if path.is_fifo():
        raise TraceFormatError(path, "file", "must not be a pipe, to be read twice", "a pipe")
    try:
        return next(read_objects(path))
    except TraceFormatError as error:
        try:
            return read_object(path)
        except TraceFormatError:
            raise error from None


def _nothing_in(path: Path) -> TraceFormatError:
    return TraceFormatError(path, "file", "must hold a JSON object", "nothing")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, numbered from 1."""
    try:
        with _open(path) as stream:
            for number, line in enumerate(stream, start=1):
                text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                if text.strip():
                    yield number, text
    except (OSError, EOFError, zlib.error) as error:
        told = getattr(error, "strerror", None) or str(error)
        raise TraceFormatError(path, "file", "must be a readable file", told) from None


def _open(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _decode(line: bytes) -> dict[str, Any]:
    """One object; raises ValueError for everything else."""
    found = decode_json(line)
    if not isinstance(found, dict):
        raise ValueError(kind_of_json(found))
    return found
