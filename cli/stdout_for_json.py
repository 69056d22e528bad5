"""Standard output that belongs to `--json -`: what anything else prints meanwhile goes to standard error."""

import sys
from contextlib import redirect_stdout
from io import TextIOBase
from pathlib import Path
from typing import TextIO

import typer


class StdoutForJson(TextIOBase):
    """Stands in for `sys.stdout` while a command runs; a user's policy may print, and so may libraries.

    Args:
        json: the true standard output, for the JSON.
    """

    def __init__(self, json: TextIO) -> None:
        self.json = json

    def write(self, text: str) -> int:
        """To standard error."""
        return sys.stderr.write(text)

    def flush(self) -> None:
        """Of standard error."""
        sys.stderr.flush()

    def isatty(self) -> bool:
        """As standard error."""
        return sys.stderr.isatty()

    def writable(self) -> bool:
        """Always."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As standard error."""
        return sys.stderr.encoding


def keep_for_json(context: typer.Context, path: Path | None) -> Path | None:
    """Callback of `--json`: with `-`, nothing else reaches standard output until the command ends."""
    if str(path) == "-" and not isinstance(sys.stdout, StdoutForJson):
        context.with_resource(redirect_stdout(StdoutForJson(sys.stdout)))
    return path


def json_stream() -> TextIO:
    """Where `--json -` is written."""
    return sys.stdout.json if isinstance(sys.stdout, StdoutForJson) else sys.stdout
