"""The lines of a file, plain or gzip, with their numbers: what every reader here starts from."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from ...errors import TraceFormatError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, numbered from 1; raises TraceFormatError for a file that cannot be read."""
    try:
        with _open(path) as stream:
            for number, line in enumerate(stream, start=1):
                text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                if text.strip():
                    yield number, text
    except (OSError, EOFError, zlib.error) as error:
        told = getattr(error, "strerror", None) or str(error)
        raise TraceFormatError(path, "file", "must be a readable file", told) from None


def refuse_pipe(path: Path) -> None:
    """Raise TraceFormatError for what can be read only once, since whoever looks ahead reads again."""
    if path.is_fifo():
        raise TraceFormatError(path, "file", "must not be a pipe, to be read twice", "a pipe")


def _open(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The same as text; bytes that are no UTF-8 stand for themselves as question marks."""
    return ((number, line.decode("utf-8", errors="replace")) for number, line in lines_of(path))
