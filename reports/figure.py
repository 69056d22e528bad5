"""Panels as one figure, SVG, PNG or PDF, or one in a page; the only import of matplotlib (`figure_matplotlib`).

The same panels give the same bytes.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ..base.errors import ArgumentError, install_hint
from ..base.files import whole_file
from .panels import AnyPanel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
MOST_PANELS = 12


def check_figure(path: Path | None) -> None:
    """Reject, before a long run, a file that `write_figure` could not write.

    Raises ArgumentError for another suffix than `SUFFIXES`, ModuleNotFoundError, which says how to install the extra.
    """
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise ArgumentError(f"`figure` must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {str(path)!r}")
    drawing()


def write_figure(panels: Sequence[AnyPanel], path: Path) -> None:
    """Draw 1 to `MOST_PANELS` panels; the file appears whole or not at all.

    Raises ArgumentError for more panels; as `check_figure`; OSError if its folder does not exist, or it is a folder.
    """
    check_figure(path)
    write_drawn(figure_of(panels, ""), path)


def write_drawn(figure: "Figure", path: Path) -> None:
    """Write what `figure_of` drew; raises as `write_figure`."""
    with whole_file(path) as part:
        drawing().save_figure(figure, part, path.suffix)


def figure_of(panels: Sequence[AnyPanel], title: str) -> "Figure":
    """Panels as a figure of matplotlib; raises ArgumentError for none, and as `write_figure`."""
    if not panels:
        raise ArgumentError("`figure` has nothing to show: no request was answered")
    if len(panels) > MOST_PANELS:
        raise ArgumentError(f"`figure` has room for {MOST_PANELS} panels, got {len(panels)}: ask for less at a time")
    found: Figure = drawing().drawn(tuple(panels), title)
    return found


def drawing() -> ModuleType:
    """`figure_matplotlib`; raises ModuleNotFoundError, which says how to install it, where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError(f"figures need matplotlib: {install_hint('figures')}")
    from . import figure_matplotlib  # noqa: PLC0415 - an optional dependency at its one door

    return figure_matplotlib
