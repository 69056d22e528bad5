"""The lines of a file, plain or gzip, with their numbers: what every reader here starts from.

A line is bounded, so that a file of gigabytes without a line break, or one that unpacks to it, takes no memory.
"""

import gzip
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from ....strict_json import MOST_BYTES
from ...errors import TraceFormatError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, numbered from 1.

    Raises:
        TraceFormatError: a file that cannot be read, or a line of more than 128 MiB.
    """
    return sound_lines(enumerate(raw_lines(path), start=1))


def sound_lines(lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank, the first one without a byte order mark."""
    for number, line in lines:
        text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if text.strip():
            yield number, text


def raw_lines(path: Path) -> Iterator[bytes]:
    """All lines with their ends; raises as `lines_of`."""
    try:
        yield from bounded_lines(path)
    except (OSError, EOFError, zlib.error) as error:
        told = getattr(error, "strerror", None) or str(error)
        raise TraceFormatError(path, "file", "must be a readable file", told) from None


def bounded_lines(path: Path) -> Iterator[bytes]:
    """The same; raises what opening, reading and unpacking a file does, and TraceFormatError for a line too long."""
    with opened(path) as stream:
        for number, line in enumerate(iter(partial(stream.readline, MOST_BYTES + 1), b""), start=1):
            if len(line) > MOST_BYTES:
                raise too_long(f"{path}: line {number}", "line")
            yield line


def too_long(place: Path | str, what: str) -> TraceFormatError:
    """What to raise of a line, or of a value over many lines, that goes on and on."""
    return TraceFormatError(place, what, f"must have at most {MOST_BYTES:,} bytes", "more")


def refuse_pipe(path: Path) -> None:
    """Raise TraceFormatError for what can be read only once, since whoever looks ahead reads again."""
    if path.is_fifo():
        raise TraceFormatError(path, "file", "must not be a pipe, to be read twice", "a pipe")


def opened(path: Path) -> BinaryIO:
    """A file to be read, unpacked if its name ends in .gz; raises OSError."""
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines as `lines_of` gives them, as text; bytes that are no UTF-8 stand for themselves as question marks."""
    return ((number, line.decode("utf-8", errors="replace")) for number, line in lines_of(path))
