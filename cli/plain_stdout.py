"""Standard output where it cannot show everything: it writes what it can, and never raises over the rest."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import TextIOBase
from typing import TextIO

from ..reports.tables.terminal_encoding import draws_boxes, shown_in


class PlainStream(TextIOBase):
    """A text stream that spells what `encoding` lacks in characters that it has.

    It has no `buffer`, so that nothing can write around it.

    Args:
        stream: what is written to.
        encoding: what may be written, a part of what the stream takes.
    """

    def __init__(self, stream: TextIO, encoding: str) -> None:
        self._stream = stream
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """What is written."""
        return self._encoding

    def write(self, text: str) -> int:
        """Write `text` as far as the encoding goes; returns the length of `text`."""
        self._stream.write(shown_in(text, self._encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The stream's own."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Always."""
        return True


@contextmanager
def showable_output() -> Iterator[None]:
    """Wrap standard output and error, where they cannot show all that we print, as long as the context lasts."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_showable(stream, os.environ) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _showable(stream: TextIO, environment: Mapping[str, str]) -> TextIO:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if draws_boxes(encoding) and (environment.get("PYTHONIOENCODING") or not _asks_for_ascii(environment)):
        return stream
    return PlainStream(stream, "ascii" if draws_boxes(encoding) else encoding)  # type: ignore[return-value]


def _asks_for_ascii(environment: Mapping[str, str]) -> bool:
    """Whether the locale was set to C. Python writes UTF-8 all the same (PEP 540), which the terminal may not show.

    LANG and LC_CTYPE do not count: C is what they are where nobody said anything, and Python replaces it (PEP 538).
    """
    return environment.get("LC_ALL") in ("C", "POSIX")
