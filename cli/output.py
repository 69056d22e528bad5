"""Printing: tables for people, JSON for programs."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..base.errors import ArgumentError, as_options
from ..base.files import place_of, write_whole
from ..decoding.steps import PolicyError
from ..reports.figure import check_figure, drawing
from ..reports.ledger import Again
from ..reports.page import PAGE, Pictured, ReportPage, html_page, page_of
from ..reports.tables import REMARKS, Grid, Printed, console_of_output, print_line, print_tables, prose_of
from ..traces.folder import check_outside
from .errors import json_stream, keep_for_json

JsonOption = Annotated[
    Path | None,
    typer.Option(help="Write JSON here instead of a table; - for standard output.", callback=keep_for_json),
]


def print_table(table: Grid) -> None:
    """To standard output; see `console_of_output`."""
    print_tables(console_of_output(), [table])


def say(text: str) -> None:
    """Print prose, broken between words at the width of tables."""
    print_table(prose_of(text))


def show(
    json: Path | None,
    found: Printed,
    tables: Callable[[], Sequence[Grid]] | None = None,
    *,
    figure: Path | None = None,
    html: Path | None = None,
) -> None:
    """Write the result as JSON if asked for, else print it, with `tables` in place of its own if given.

    Remarks name options in both, as errors do. A `figure` or a page, `html`, is written first. The JSON of a result
    that can be a page holds the page too.
    """
    if figure is not None:
        assert isinstance(found, Pictured), "a command with --figure"
        found.plot(figure)
    if html is not None:
        write_whole(html, html_page([_page(found)]))
    if json is not None:
        page = {PAGE: _page(found).to_json()} if isinstance(found, Pictured) else {}
        write_json({name: _in_options(part) for name, part in found.to_json().items()} | page, json)
        return
    named = (replace(table, remarks=tuple(map(as_options, table.remarks))) for table in (tables or found.tables)())
    console = console_of_output()
    print_tables(console, named)
    for line in found.lines():
        print_line(console, line)


def _page(found: Printed) -> ReportPage:
    """The page of a result, with the command that was typed."""
    return page_of(found, shlex.join(["paceline", *sys.argv[1:]]))


def refuse_beside(option: str, **values: object) -> None:
    """Raise ArgumentError for the first given option that `option` would ignore."""
    first = next((name for name, value in values.items() if value), None)
    if first is not None:
        advice = "; compare the chains that it finds best with `policies`" if option == "--sweep" else ""
        raise ArgumentError(f"`{first}` does not apply to {option}{advice}")


def refuse_without(option: str, **values: object) -> None:
    """Raise ArgumentError for the first given option that goes with `option`."""
    for name in (name for name, value in values.items() if value is not None):
        raise ArgumentError(f"`{name}` goes with {option}")


def check_cluster(cluster: str | None) -> str:
    """The cluster of a workload; raises ValueError where none was given."""
    if cluster is None:
        raise ValueError("--workload goes with --cluster FILE or --cluster DEVICE, as in --cluster h100")
    return cluster


def show_again(context: typer.Context, json: Path | None, candidate: str, run: Callable[[str], Again]) -> None:
    """Run a candidate of a recommendation, `--from`, again, and show it; exit 1 if its figures are not those of then.

    Raises ArgumentError for any other option that was typed.
    """
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in ("from_", "json") and source is not None and source.name == "COMMANDLINE":
            raise ArgumentError(f"`{name}` does not apply to --from")
    check_json_path(json)
    found = run(candidate)
    show(json, found)
    if not found.equal:
        raise typer.Exit(1)


@contextmanager
def finished_first(showing: Callable[[Any], None]) -> Iterator[Callable[[Any], None]]:
    """Gives `showing`; where a policy breaks the contract within the block, what others finished is shown first."""
    try:
        yield showing
    except PolicyError as broken:
        if broken.finished is not None:
            showing(broken.finished)
        raise


def show_table(json: Path | None, data: dict[str, Any], table: Grid) -> None:
    """Write `data` where JSON is asked for, else print its table."""
    if json is not None:
        write_json(data, json)
    else:
        print_table(table)


def _in_options(part: object) -> object:
    """A part of a report's JSON; one with remarks as a copy."""
    if not isinstance(part, dict):
        return part
    return part | {key: list(map(as_options, part[key])) for key in REMARKS if key in part}


def check_json_path(path: Path | None, *others: str | Path | None) -> None:
    """Reject, before a long run, a path that `write_json` would reject after it.

    `others` are files and folders that the command reads or writes, None for those not asked for. Raises ValueError if
    it cannot be written, or is one of the others; OSError for a link that leads to itself.
    """
    if path is not None and str(path) != "-":
        check_file_path("--json", path, *others)


def check_file_path(option: str, path: Path | None, *others: str | Path | None) -> None:
    """Reject, before a long run, a file that could not be written after it; raises as `check_json_path`."""
    if path is None:
        return
    if not path.name:
        raise ValueError(f"{option} must name a file, got {str(path)!r}")
    place = place_of(path)
    if not place.parent.is_dir():
        raise ValueError(f"{path}: no folder {path.parent if path.parent.resolve() == place.parent else place.parent}")
    if place.is_dir():
        raise ValueError(f"{path}: is a folder")
    # Replacing a file needs permission to write into its folder; pipes and devices are written directly.
    if not os.access(place if place.exists() and not place.is_file() else place.parent, os.W_OK):
        raise ValueError(f"{path}: cannot be written")
    check_outside(path)
    if any(other is not None and place_of(Path(other)) == place for other in others):
        raise ValueError(f"{option} must be a file of its own, got {str(path)!r}")


FigureOption = Annotated[Path | None, typer.Option(help="Draw into this .svg, .png or .pdf as well.")]


def check_figure_path(path: Path | None, *others: str | Path | None) -> None:
    """Reject, before a long run, a figure that could not be drawn or written after it; raises as `check_json_path`."""
    check_figure(path)
    check_file_path("--figure", path, *others)


HtmlOption = Annotated[Path | None, typer.Option(help="Write one self-contained page, .html, as well.")]


def check_html_path(option: str, path: Path | None, *others: str | Path | None) -> None:
    """Reject, before a long run, a page that could not be written after it; raises as `check_json_path`."""
    if path is None:
        return
    drawing()
    if path.suffix != ".html":
        raise ValueError(f"{option} must end in .html, got {str(path)!r}")
    check_file_path(option, path, *others)


def check_new_folder(option: str, path: Path | None, *, what: str = "a run") -> None:
    """Reject, before a long run, a folder that could not be made after it; raises ValueError."""
    if path is None:
        return
    if not path.name:
        raise ValueError(f"{option} must name a new folder, got {str(path)!r}")
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path}: exists already; {what} is never overwritten")
    check_outside(path)
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ValueError(f"{option} {path}: cannot be made in {above}")


def write_json(data: dict[str, Any], path: Path) -> None:
    """To `path`, or to standard output for `-`; a file appears whole or not at all.

    Raises ValueError as `check_json_path`, OSError if it cannot be written; a file there is unchanged.
    """
    check_json_path(path)
    text = json.dumps(data, indent=1, sort_keys=True) + "\n"
    if str(path) == "-":
        json_stream().write(text)
        return
    write_whole(path, text)
