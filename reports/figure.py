"""Panels as one figure, SVG or PNG; the one door to matplotlib. The same panels give the same bytes."""

from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from ..base.errors import install_hint
from ..base.files import whole_file
from .panels import Panel

SUFFIXES = (".svg", ".png")


def check_figure(path: Path | None) -> None:
    """Refuse, before a long run, a file that `write_figure` could not draw into.

    Raises:
        ValueError: neither .svg nor .png.
        ModuleNotFoundError: the extra is not installed; the message says how.
    """
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise ValueError(f"--figure must end in {' or '.join(SUFFIXES)}, got {str(path)!r}")
    _drawing()


def write_figure(panels: tuple[Panel, ...], path: Path) -> None:
    """Draw panels; the file appears whole or not at all.

    Args:
        panels: 1 to 4.
        path: ends in .svg or .png.

    Raises:
        ValueError, ModuleNotFoundError: as `check_figure`.
        OSError: no folder to stand in, or a folder itself.
    """
    check_figure(path)
    with whole_file(path) as part:
        _drawing().save_figure(panels, part, path.suffix)


def _drawing() -> ModuleType:
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError(f"figures need matplotlib: {install_hint('figures')}")
    from . import drawing  # noqa: PLC0415 - an optional dependency, at its one door

    return drawing
