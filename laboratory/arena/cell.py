"""A cell of the arena: what policies are compared in, by three names."""

import re
from dataclasses import dataclass
from typing import Self

from ...arguments import ArgumentError

NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
PARTS = ("recording", "ladder", "load")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ArenaCell:
    """A recording, at the seconds of a ladder, under a load; its text is `gpt2-weak/steep/batch-8`.

    Attributes:
        recording: by the arena's name of it.
        ladder: of seconds, by name.
        load: how requests come, by name.

    Raises:
        ArgumentError: a name that is none: small letters, digits, points and hyphens, a letter or digit first.
    """

    recording: str
    ladder: str
    load: str

    def __post_init__(self) -> None:
        for part in PARTS:
            name = getattr(self, part)
            if not NAME.fullmatch(name):
                raise ArgumentError(f"{part} must match {NAME.pattern}, got {name!r}")

    def __str__(self) -> str:
        return f"{self.recording}/{self.ladder}/{self.load}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a cell's text.

        Raises:
            ArgumentError: other than three names with slashes between.
        """
        names = text.split("/")
        if len(names) != len(PARTS):
            raise ArgumentError(f"a cell must be RECORDING/LADDER/LOAD, as pico/steep/batch-8, got {text!r}")
        try:
            return cls(**dict(zip(PARTS, names, strict=True)))
        except ArgumentError as error:
            raise ArgumentError(f"cell {text!r}: {error}") from None
