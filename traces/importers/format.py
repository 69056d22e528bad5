"""A foreign format: how its files are recognised, what they hold, and their reader."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..rounds.rounds import Form, RoundsRequest
from .importing import Ongoing
from .reading import Fields

Sees = Callable[[Fields], bool]


def having(*keys: str) -> Sees:
    """A predicate for objects with all these keys."""
    return lambda found: all(key in found for key in keys)


def described(name: str) -> dict[str, Any]:
    """The fields of a format that `formats.toml` holds."""
    return {"name": name, **_descriptions()[name]}


@cache
def _descriptions() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("formats.toml").read_text(encoding="utf-8"))


def _never(_: object) -> bool:
    return False


class Format(BaseModel):
    """One foreign format."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str  # on the command line
    words: str  # its files, in words
    keys: tuple[str, ...]  # by which its files are recognised, for error messages
    near: tuple[str, ...] = ()  # further keys of such files, and of variants without `keys`
    form: Form  # what they usually hold
    by_line: bool  # whether a bad line can be skipped
    exact: str  # what is exact then
    unknown: str  # what is unknown, or drawn
    # the requests of files, in a generator or all at once; raises TraceFormatError
    read: Callable[[Sequence[Path], Ongoing], Iterator[RoundsRequest]]
    sees: Sees = _never  # whether an object could be of such a file; of a format of text none is
    sees_beside: Sees = _never  # whether an object could be of a file that accompanies such files
    sees_line: Callable[[str], bool] = _never  # whether a line could be of such a file; of a format of JSON none is

    @property
    def is_text(self) -> bool:
        """Whether its files may be other than JSON."""
        return self.sees_line is not _never

    @property
    def notes(self) -> tuple[str, str]:
        """What readers of the recording must know."""
        return f"Exact: {self.exact}", f"Unknown: {self.unknown}"
