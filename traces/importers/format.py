"""What a foreign format is: how its files are told, what they know, and who reads them."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..rounds.rounds import Form, RoundsRequest
from .reading import Fields
from .rounds import Ongoing

Sees = Callable[[Fields], bool]


def having(*keys: str) -> Sees:
    """Sees objects with all these keys."""
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
    """One foreign format.

    Attributes:
        name: as the command line calls it.
        words: what its files are, in words.
        keys: what tells its files, for error messages.
        near: what else stands in such files, and in those of their kin that lack what tells them.
        form: what they usually know.
        by_line: whether a line that is bad can be skipped.
        exact: what becomes exact.
        unknown: what stays unknown, or is drawn.
        read: the requests of files, in a generator or all at once; raises TraceFormatError.
        sees: whether an object could be of such a file; of a format of text none is.
        sees_beside: whether an object could be of a file that goes with those that `sees` tells.
        sees_line: whether a line could be of such a file; of a format of JSON none is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    words: str
    keys: tuple[str, ...]
    near: tuple[str, ...] = ()
    form: Form
    by_line: bool
    exact: str
    unknown: str
    read: Callable[[Sequence[Path], Ongoing], Iterator[RoundsRequest]]
    sees: Sees = _never
    sees_beside: Sees = _never
    sees_line: Callable[[str], bool] = _never

    @property
    def notes(self) -> tuple[str, str]:
        """What every reader of the recording must know."""
        return f"Exact: {self.exact}", f"Unknown: {self.unknown}"
