"""Recordings that come with the package."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from ....shipped import shipped
from ....traces.folder import META
from ....whole_files import whole_folder
from .source import QuickSource, Shelf


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedSource(QuickSource):
    """A recording of the package.

    Attributes:
        title: of the recording, such as `pico`.
    """

    title: str

    def recipe(self) -> object:
        """Its meta, which holds the hashes of all else."""
        return {"shipped": (self._folder() / META).read_text(encoding="utf-8")}

    def make(self, out: Path, *, name: str, shelf: Shelf) -> None:
        """Copy it; it keeps the name it has."""
        del name, shelf
        with whole_folder(out) as folder:
            shutil.copytree(self._folder(), folder, dirs_exist_ok=True)

    def _folder(self) -> Path:
        return shipped("recordings", f"{self.title}.trace")
