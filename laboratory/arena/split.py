"""Which recordings constants are settled on, and which are reported: `split.toml`, committed before any tuning."""

from enum import StrEnum
from pathlib import Path

from pydantic import ValidationInfo, field_validator

from ...strict_toml import TomlFileError, checked_toml, read_toml
from ...traces.meta import Record
from .cell import NAME

SPLIT_FILE = Path(__file__).with_name("split.toml")


class SplitFileError(TomlFileError):
    """A split that breaks a rule."""


class Side(StrEnum):
    """Of a split."""

    tune = "tune"
    report = "report"
    all = "all"


class Split(Record):
    """Recordings on two sides.

    Attributes:
        tune: by name, those that constants are settled on.
        report: those that are reported and nothing is settled on, one at least.
    """

    tune: tuple[str, ...] = ()
    report: tuple[str, ...]

    @field_validator("tune", "report")
    @classmethod
    def _names_each_once(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.field_name == "report" and not names:
            raise ValueError("must name one recording at least")
        before = (*info.data.get("tune", ()),)
        for place, name in enumerate(names):
            if not NAME.fullmatch(name):
                raise ValueError(f"must hold names that match {NAME.pattern}, which {name!r} does not")
            if name in (*before, *names[:place]):
                raise ValueError(f"must hold what no side holds before, which {name!r} is not")
        return names

    def recordings(self, side: Side) -> tuple[str, ...]:
        """Those of a side, in the order of the file; of all the tuning side's come first."""
        return {Side.tune: self.tune, Side.report: self.report, Side.all: (*self.tune, *self.report)}[side]

    def side_of(self, recording: str) -> Side:
        """`tune` or `report`; raises KeyError for a recording that is on neither."""
        if recording in self.tune:
            return Side.tune
        if recording in self.report:
            return Side.report
        raise KeyError(recording)


def read_split(path: Path = SPLIT_FILE) -> Split:
    """Read a split; the one that is committed unless another file is named.

    Raises:
        SplitFileError: no TOML, or one that is no split, as without a recording to report; one line.
    """
    return checked_toml(path, read_toml(path, "the split", SplitFileError), Split, SplitFileError)
