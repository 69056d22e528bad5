"""Cells of a sweep: each is played once, and kept in a file whose name is a hash of all its inputs.

A file appears whole or not at all: so a cell with a file need not be played again, several machines can share a folder,
and a killed sweep loses only the cells that were running.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..base.files import write_whole
from ..traces.errors import TraceFormatError

CELLS = "cells"  # the folder of the files, in one of a sweep
FINISHED, FAILED = ".json", ".failed.json"
KEY_BYTES = 16


class CellWork(Protocol):
    """One cell to be played, in this process or another one: it pickles, and its text says which it is."""

    @property
    def asked(self) -> Mapping[str, Any]:
        """All its inputs, as JSON holds them, hashes of the files that it reads included."""

    def play(self) -> Mapping[str, Any]:
        """Its figures, as JSON holds them; raises whatever went wrong."""


def key_of(asked: Mapping[str, Any]) -> str:
    """The name of a cell's file: 32 hexadecimal digits of what was asked."""
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=KEY_BYTES).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFound:
    """The result of a cell."""

    asked: Mapping[str, Any]
    figures: Mapping[str, Any] | None  # None if it failed
    failed: str = ""  # why, in one line; "" if it did not fail


class CellStore:
    """The files of a folder's cells, `cells/KK/KEY.json`, and `KEY.failed.json` of those that failed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / CELLS

    def keys(self) -> tuple[set[str], set[str]]:
        """(of finished cells, of failed ones); no file is read."""
        finished, failed = set[str](), set[str]()
        for inside in os.scandir(self._folder) if self._folder.is_dir() else ():
            for file in os.scandir(inside.path) if inside.is_dir() else ():
                if file.name.startswith("."):  # half written
                    continue
                if file.name.endswith(FAILED):
                    failed.add(file.name.removesuffix(FAILED))
                elif file.name.endswith(FINISHED):
                    finished.add(file.name.removesuffix(FINISHED))
        return finished, failed - finished

    def read(self, key: str) -> CellFound | None:
        """The result kept under a key, None if there is none; raises TraceFormatError for a file that is no cell."""
        for path in (self._path(key, FINISHED), self._path(key, FAILED)):
            try:
                content = json.loads(path.read_bytes())
            except FileNotFoundError:
                continue
            except ValueError as error:
                raise TraceFormatError(path, "content", "must be JSON", str(error)) from None
            if not isinstance(content, dict) or set(content) not in ({"asked", "figures"}, {"asked", "failed"}):
                raise TraceFormatError(
                    path, "content", "must have `asked` and `figures` or `failed`", str(content)[:60]
                )
            return CellFound(asked=content["asked"], figures=content.get("figures"), failed=content.get("failed", ""))
        return None

    def write(self, key: str, found: CellFound) -> None:
        """Keep the result of a cell; raises OSError where it cannot be written."""
        outcome = {"failed": found.failed} if found.figures is None else {"figures": found.figures}
        path = self._path(key, FAILED if found.figures is None else FINISHED)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"asked": found.asked, **outcome}, sort_keys=True) + "\n")
        if found.figures is not None:
            self._path(key, FAILED).unlink(missing_ok=True)

    def _path(self, key: str, ending: str) -> Path:
        return self._folder / key[:2] / f"{key}{ending}"


class Failure(NamedTuple):
    """A cell that has no figures."""

    cell: str
    why: str  # in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsPlayed:
    """The results of the requested cells; `failed` are those of this call and of earlier ones."""

    total: int
    kept: int  # results that existed before
    played: int  # by this call, those that failed among them
    failed: tuple[Failure, ...]
    # no result is kept, so that the next call plays them: the process ended, or its memory or disk was full
    lost: tuple[Failure, ...]

    @property
    def missing(self) -> int:
        """Cells that were never begun, as an interrupt left them out."""
        return self.total - self.kept - self.played - len(self.lost)
