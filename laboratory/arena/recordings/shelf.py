"""The folder of finished recordings: each is made once, appears whole, and is used again while its recipe stays."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ....arguments import ArgumentError
from ....progress import tell
from ....whole_files import write_whole
from .catalogue import Entry, catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingShelf:
    """Recordings below one folder.

    Attributes:
        work: the folder; recordings stand in `recordings/NAME.trace`, beside `NAME.made.json`, their fingerprint.
        entries: what can be asked for.
    """

    work: Path
    entries: Mapping[str, Entry] = field(default_factory=catalogue)

    def recording(self, name: str) -> Path:
        """The finished .trace folder, made if it is not there or its recipe is another now.

        Raises:
            ArgumentError: no recording has this name.
            RecordingUnavailableError: it cannot be had on this machine.
        """
        fingerprint = self.fingerprint(name)
        out, made = self._folder / f"{name}.trace", self._folder / f"{name}.made.json"
        if out.exists() and _read(made) == fingerprint:
            return out
        tell(f"making recording {name}: {out}")
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f"{name}.making.trace"
        shutil.rmtree(part, ignore_errors=True)
        self._entry(name).source.make(part, name=name, shelf=self)
        # In this order a kill leaves a recording without its fingerprint, never one with that of another.
        made.unlink(missing_ok=True)
        shutil.rmtree(out, ignore_errors=True)
        part.rename(out)
        write_whole(made, json.dumps({"fingerprint": fingerprint}) + "\n")
        return out

    def fingerprint(self, name: str) -> str:
        """Hash of all that decides what is in a recording; raises as `recording` does."""
        source = self._entry(name).source
        said = {"recipe": source.recipe(), "needs": [self.fingerprint(other) for other in source.needs]}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    @property
    def _folder(self) -> Path:
        return self.work / "recordings"

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise ArgumentError(f"a recording must be one of {', '.join(self.entries)}, got {name!r}")
        return self.entries[name]


def recording(name: str, work: Path) -> Path:
    """The finished .trace folder of a recording of the catalogue below `work` (see `RecordingShelf.recording`)."""
    return RecordingShelf(work=work).recording(name)


def _read(made: Path) -> str | None:
    """The fingerprint that was kept, None without a sound one."""
    try:
        found = json.loads(made.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.get("fingerprint") if isinstance(found, dict) else None
