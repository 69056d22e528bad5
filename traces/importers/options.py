"""What the user says of files that do not say it themselves."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..meta import NAME_PATTERN, ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of an import.

    Attributes:
        name: of the recording.
        target: name of the model that verifies.
        names: a file (its path, or its name alone) or a method, as the files call it -> the drafter's name.
        token_drafters: drafters, by their new names, that read tokens only, so that a round says something of every
            position it drafted whatever round that is in.
        windows: drafter -> most tokens it drafts in a round, >= 1.
        models: shapes for cost models.
    """

    name: str = "imported"
    target: str = "target"
    names: Mapping[str, str] = field(default_factory=dict)
    token_drafters: frozenset[str] = frozenset()
    windows: Mapping[str, int] = field(default_factory=dict)
    models: tuple[ModelInfo, ...] = ()

    def __post_init__(self) -> None:
        for name in (*self.names.values(), self.target):
            if not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(f"a drafter's name must match {NAME_PATTERN}, got {name!r}")
        for name, window in self.windows.items():
            if window < 1:
                raise ValueError(f"the window of {name} must be >= 1, got {window}")

    def name_of_file(self, path: Path) -> str | None:
        """What the user calls the drafter of this file, None if nothing."""
        return self.names.get(str(path), self.names.get(path.name))

    def refuse_unused(self, files: tuple[Path, ...], methods: frozenset[str], drafters: tuple[str, ...]) -> None:
        """Raise ValueError for an option that named nothing.

        Args:
            files: that were read.
            methods: as the files call them.
            drafters: names they were given.
        """
        known = {*methods, *map(str, files), *(path.name for path in files)}
        for key in self.names:
            if key not in known:
                raise ValueError(f"--drafter must name a file or a method of the files, got {key!r}")
        for option, names in (("--token-drafter", self.token_drafters), ("--window", self.windows)):
            unknown = sorted(name for name in names if name not in drafters)
            if unknown:
                raise ValueError(f"{option} must name a drafter of {', '.join(drafters) or 'none'}, got {unknown[0]!r}")
