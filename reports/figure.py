"""Panels as one figure, SVG, PNG or PDF; the one door to matplotlib. The same panels give the same bytes."""

from abc import abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ..base.errors import ArgumentError, install_hint
from ..base.files import whole_file
from .panels import AnyPanel
from .tables import Printed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
MOST_PANELS = 12


def check_figure(path: Path | None) -> None:
    """Refuse, before a long run, a file that `write_figure` could not draw into.

    Raises:
        ArgumentError: none of `SUFFIXES`.
        ModuleNotFoundError: the extra is not installed; the message says how.
    """
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise ArgumentError(f"`figure` must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {str(path)!r}")
    _drawing()


def write_figure(panels: Sequence[AnyPanel], path: Path, title: str = "") -> None:
    """Draw panels; the file appears whole or not at all.

    Args:
        panels: 1 to `MOST_PANELS`.
        path: ends in one of `SUFFIXES`.
        title: of all of them.

    Raises:
        ArgumentError: more panels, or as `check_figure`.
        ModuleNotFoundError: as `check_figure`.
        OSError: no folder to stand in, or a folder itself.
    """
    check_figure(path)
    _write(_drawn(panels, title), path)


def _write(figure: "Figure", path: Path) -> None:
    with whole_file(path) as part:
        _drawing().save_figure(figure, part, path.suffix)


def _drawn(panels: Sequence[AnyPanel], title: str) -> "Figure":
    if len(panels) > MOST_PANELS:
        raise ArgumentError(f"`figure` has room for {MOST_PANELS} panels, got {len(panels)}: ask for less at a time")
    found: Figure = _drawing().drawn(tuple(panels), title)
    return found


def _drawing() -> ModuleType:
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError(f"figures need matplotlib: {install_hint('figures')}")
    from . import drawing  # noqa: PLC0415 - an optional dependency, at its one door

    return drawing


class Pictured(Printed):
    """A result that is a figure as well."""

    __slots__ = ()

    @abstractmethod
    def panels(self) -> Sequence[AnyPanel]:
        """What the figure shows."""

    @abstractmethod
    def headline(self) -> str:
        """What it is of, in a line."""

    def plot(self, figure: str | Path | None = None) -> "Figure":
        """The figure of matplotlib, which notebooks show; with `figure` it is written as well (.svg, .png, .pdf).

        Raises:
            ArgumentError, ModuleNotFoundError, OSError: as `write_figure`.
        """
        path = None if figure is None else Path(figure)
        check_figure(path)
        found = _drawn(self.panels(), self.headline())
        if path is not None:
            _write(found, path)
        return found
