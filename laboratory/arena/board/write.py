"""Writes the leaderboard: a page, and a figure and JSON beside it."""

import json
from pathlib import Path

from ....whole_files import whole_file
from ...findings.figure import check_figure, write_figure
from .leaderboard import Leaderboard
from .page import leaderboard_page
from .panels import panels

FIGURES = "figures"  # folder beside the page


def check_page(page: Path) -> tuple[Path, ...]:
    """Refuse, before a long run, what `write_leaderboard` could not write; returns the files that it writes.

    Raises:
        ValueError: a page that does not end in .md or is a folder, or whose folders are not there or none.
        ModuleNotFoundError: the extra for figures is not installed.
    """
    if page.suffix != ".md":
        raise ValueError(f"--page must end in .md, got {str(page)!r}")
    if not page.absolute().parent.is_dir():
        raise ValueError(f"--page must be in a folder that exists, got {str(page)!r}")
    figure = _figure(page)
    if page.is_dir() or (figure.parent.exists() and not figure.parent.is_dir()):
        raise ValueError(f"--page must be a file beside which {FIGURES} is a folder or nothing, got {str(page)!r}")
    check_figure(figure)
    return page, figure, figure.with_suffix(".json")


def write_leaderboard(board: Leaderboard, page: Path) -> None:
    """Write `NAME.md`, `figures/NAME.svg` and `figures/NAME.json`; each appears whole or not at all.

    Raises:
        OSError: a file cannot be written.
    """
    figure = _figure(page)
    figure.parent.mkdir(exist_ok=True)
    write_figure(panels(board), figure)
    with whole_file(figure.with_suffix(".json")) as part:
        part.write_text(json.dumps(board.to_json(), indent=1) + "\n", encoding="utf-8")
    with whole_file(page) as part:
        part.write_text(leaderboard_page(board, f"{FIGURES}/{figure.name}"), encoding="utf-8")


def _figure(page: Path) -> Path:
    return page.parent / FIGURES / f"{page.stem}.svg"
