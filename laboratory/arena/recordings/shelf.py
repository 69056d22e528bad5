"""The folder of finished recordings: each is made once, appears whole, and is used again while its recipe stays."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ....arguments import ArgumentError
from .catalogue import Entry, catalogue
from .made_once import is_made, made_once


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
        source = self._entry(name).source
        make = partial(source.make, name=name, shelf=self)
        return made_once(self._place(name), self.fingerprint(name), make)

    def is_at_hand(self, name: str) -> bool:
        """Whether it is there, or can be made in seconds; raises as `recording` does."""
        return not self._entry(name).source.slow or is_made(self._place(name), self.fingerprint(name))

    def fingerprint(self, name: str) -> str:
        """Hash of all that decides what is in a recording; raises as `recording` does."""
        source = self._entry(name).source
        said = {"recipe": source.recipe(), "needs": [self.fingerprint(other) for other in source.needs]}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def _place(self, name: str) -> Path:
        return self.work / "recordings" / f"{name}.trace"

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise ArgumentError(f"a recording must be one of {', '.join(self.entries)}, got {name!r}")
        return self.entries[name]


def recording(name: str, work: Path) -> Path:
    """The finished .trace folder of a recording of the catalogue below `work` (see `RecordingShelf.recording`)."""
    return RecordingShelf(work=work).recording(name)
