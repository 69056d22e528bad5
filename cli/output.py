"""Printing: tables for people, JSON for programs."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import track

from ..reports.grid import Grid
from .stdout_for_json import json_stream, keep_for_json

FILE_WIDTH = 160  # cells; of tables in a file or a pipe

Item = TypeVar("Item")
JsonOption = Annotated[
    Path | None,
    typer.Option(help="Write JSON here instead of a table; - for standard output.", callback=keep_for_json),
]


def progress(items: Sequence[Item], description: str) -> Iterable[Item]:
    """The items, with a progress bar on standard error if that is a terminal."""
    console = Console(stderr=True)
    return track(items, description=description, transient=True, console=console, disable=not console.is_terminal)


def print_table(table: Grid) -> None:
    """To standard output, as wide as the terminal or as COLUMNS says; wide enough for a file where neither is known."""
    # Names come from users: what looks like markup or a number in one is none.
    console = Console(markup=False, highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console = Console(markup=False, highlight=False, width=FILE_WIDTH)
    console.print(table, crop=False)


def say(text: str) -> None:
    """Print prose, broken between words at the width of tables."""
    print_table(Grid(columns=(), rows=(), remarks=(text,)))


def check_json_path(path: Path | None) -> None:
    """Refuse, before a long run, what `write_json` would refuse behind it; raises ValueError."""
    if path is None or str(path) == "-":
        return
    if not path.name:
        raise ValueError(f"--json must name a file, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: no folder {path.parent}")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path}: cannot be written")


def check_new_folder(option: str, path: Path | None, *, what: str = "a run") -> None:
    """Refuse, before a long run, a folder that could not be made behind it; raises ValueError."""
    if path is None:
        return
    if not path.name:
        raise ValueError(f"{option} must name a new folder, got {str(path)!r}")
    if path.exists():
        raise ValueError(f"{path}: exists already; {what} is never overwritten")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ValueError(f"{option} {path}: cannot be made in {above}")


def write_json(data: dict[str, Any], path: Path) -> None:
    """To `path`, or to standard output for `-`; a file appears whole or not at all.

    Raises:
        ValueError: `path` has no folder to stand in, or is one.
    """
    check_json_path(path)
    text = json.dumps(data, indent=1, sort_keys=True) + "\n"
    if str(path) == "-":
        json_stream().write(text)
        return
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):  # a pipe or a device: written through
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path, text)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
