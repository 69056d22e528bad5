"""Standard output that is not written as it comes: spelled in what a terminal shows, or kept free for `--json -`."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import TextIOBase
from pathlib import Path
from typing import TextIO, cast

import typer

from ..reports.tables.terminal_encoding import draws_boxes, shown_in


class PassedOn(TextIOBase):
    """A text stream that hands on what it is given; it has no `buffer`, so that nothing can write around it.

    Args:
        to: the stream that is written to, asked for anew each time.
        encoding: what may be written, a part of what the stream takes; the rest is spelled in characters it has.
    """

    encoding = ""  # a class attribute hides the one of TextIOBase, which cannot be set

    def __init__(self, to: Callable[[], TextIO], encoding: str) -> None:
        self.encoding = encoding
        self._to = to

    def write(self, text: str) -> int:
        """Write `text` as far as the encoding goes; returns the length of `text`."""
        self._to().write(shown_in(text, self.encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._to().flush()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._to().isatty()

    def fileno(self) -> int:
        """The stream's own."""
        return self._to().fileno()

    def writable(self) -> bool:
        """Always."""
        return True


class StdoutForJson(PassedOn):
    """Stands in for `sys.stdout` while a command runs and writes to `sys.stderr`: a user's policy may print.

    Args:
        json: the true standard output, for the JSON.
    """

    def __init__(self, json: TextIO) -> None:
        super().__init__(lambda: sys.stderr, sys.stderr.encoding or "utf-8")
        self.json = json


def keep_for_json(context: typer.Context, path: Path | None) -> Path | None:
    """Callback of `--json`: with `-`, nothing else reaches standard output until the command ends."""
    if str(path) == "-" and not isinstance(sys.stdout, StdoutForJson):
        context.with_resource(redirect_stdout(StdoutForJson(sys.stdout)))
    return path


def json_stream() -> TextIO:
    """Where `--json -` is written."""
    return sys.stdout.json if isinstance(sys.stdout, StdoutForJson) else sys.stdout


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
    return cast(TextIO, PassedOn(lambda: stream, "ascii" if draws_boxes(encoding) else encoding))


def _asks_for_ascii(environment: Mapping[str, str]) -> bool:
    """Whether the locale was set to C. Python writes UTF-8 all the same (PEP 540), which the terminal may not show.

    LANG and LC_CTYPE do not count: C is what they are where nobody said anything, and Python replaces it (PEP 538).
    """
    return environment.get("LC_ALL") in ("C", "POSIX")
