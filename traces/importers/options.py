"""What the user says of files that do not say it themselves."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from ...arguments import ArgumentError, check_within
from ..meta import MOST, NAME_PATTERN, ModelInfo, NgramInfo, check_title

MOST_REQUESTS = 1_000_000
MOST_WINDOW = 1024  # tokens of a draft, in logs that tell of all requests together


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests that a log does not name.

    Attributes:
        requests: how many, 1 to a million.
        output_tokens: of each answer, >= 1.
        prompt_tokens: of each prompt, 0 if unknown.
    """

    requests: int
    output_tokens: int
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        bounds = {"requests": (1, MOST_REQUESTS), "output_tokens": (1, MOST), "prompt_tokens": (0, MOST)}
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be in [{least}, {most}], got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of an import.

    Attributes:
        name: of the recording, one line.
        target: name of the model that verifies.
        names: a file (its path, or its name alone) or a method, as the files call it -> the drafter's name.
        token_drafters: drafters, by their new names, that read tokens only, so that a round says something of every
            position it drafted whatever round that is in.
        windows: drafter -> most tokens it drafts in a round, 1 to 2^31 - 1.
        prefilled: drafter -> whether the target's prefill had emitted a token before its first round, where the format
            does not settle it; otherwise the first verification doubled as prefill.
        models: shapes for cost models.
        skip_bad_lines: whether lines that break their format are skipped and counted, where formats go by lines.
        lookup: how prompt lookup finds what to copy, where the ids of all texts are known; None: as by default.
        load: the requests of a log that names none; None: the log names them.
        line: on which the result to import begins, in a file of several, from 1; None: it holds one.
        seed: of what is drawn because the log counts it and does not say where it stood; None: 0.
    """

    name: str = "imported"
    target: str = "target"
    names: Mapping[str, str] = field(default_factory=dict)
    token_drafters: frozenset[str] = frozenset()
    windows: Mapping[str, int] = field(default_factory=dict)
    prefilled: Mapping[str, bool] = field(default_factory=dict)
    models: tuple[ModelInfo, ...] = ()
    skip_bad_lines: bool = False
    lookup: NgramInfo | None = None
    load: Load | None = None
    line: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_title(self.name)
        for whose, name in (*(("a drafter's", name) for name in self.names.values()), ("the target's", self.target)):
            if not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(f"{whose} name must match {NAME_PATTERN}, got {name!r}")
        for name, window in self.windows.items():
            if not 1 <= window <= MOST:
                raise ValueError(f"the window of {name} must be in [1, {MOST}], got {window}")
        if self.line is not None:
            check_within("`line`", self.line, f"[1, {MOST}]")

    def key_of_file(self, path: Path) -> str | None:
        """What the user calls this file by to name its drafter: its path, or its name alone; None if it has no name."""
        return next((key for key in (str(path), path.name) if key in self.names), None)

    def refuse_unused(self, used: Set[str], drafters: tuple[str, ...]) -> None:
        """Raise ArgumentError for an option that named nothing, or something that got its name from another one.

        Args:
            used: keys of `names` that gave some drafter its name.
            drafters: names they were given.
        """
        for key in self.names:
            if key not in used:
                rule = "must name a file or a method of the files, and one that no other key names"
                raise ArgumentError(f"`names` {rule}, got {key!r}")
        for argument in ("token_drafters", "windows", "prefilled"):
            unknown = sorted(name for name in getattr(self, argument) if name not in drafters)
            if unknown:
                known = ", ".join(drafters) or "none"
                raise ArgumentError(f"`{argument}` must name a drafter of {known}, got {unknown[0]!r}")

    def refuse_idle(self, mattered: Set[str]) -> None:
        """Raise ArgumentError for an option that changed nothing: one that is not among those that `mattered`."""
        for argument, rule in (
            ("seed", "nothing of this log is drawn"),
            ("load", "this log names its requests"),
            ("line", "files of this format are taken whole"),
            ("lookup", "this log has no token ids to look up"),
        ):
            if getattr(self, argument) is not None and argument not in mattered:
                raise ArgumentError(f"`{argument}` must be left out: {rule}")
