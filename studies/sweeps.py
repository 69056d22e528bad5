"""Sweeps: play the cells of a grid into a folder, gather them in one table, and find the best settings."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import ArgumentError
from ..base.files import num_processors, whole_file, write_whole
from ..base.terminal import tracked
from ..reports.sweeps import ERROR, BestSettings, SweepDone, best_settings
from ..runs.cells import CellFound, CellStore, key_of
from ..traces.errors import TraceFormatError
from .grids import SweepCell, SweepGrid, grid_from, read_grid

GRID = "sweep.json"
TABLE = "cells.parquet"


def sweep_grid(
    grid: str | Path,
    *,
    out: str | Path,
    on: str = "processes",
    jobs: int | None = None,
    shard: str | None = None,
    again: bool = False,
) -> SweepDone:
    """Play all cells of a grid that a folder lacks (docs/sweeps.md); Ctrl-C ends it; played cells are kept.

    Args:
        grid: a TOML file.
        out: the folder, new or of the same grid.
        on: "processes" of this machine, "dask" or "ray".
        jobs: processes at a time; None: one for each processor.
        shard: "2/8" is every eighth cell from the second on, for the second of eight calls that share the folder.
        again: whether cells that failed before are played again.

    Raises:
        ValueError: a bad grid, shard or number, or a folder of another grid; one line.
        ModuleNotFoundError: Dask or Ray is not installed.
    """
    # Imported here: joblib is needed to play cells, not to read them.
    from ..runs.workers import On, check_installed, kept_processes, play_cells  # noqa: PLC0415

    if on not in list(On):
        raise ArgumentError(f"`on` must be one of {', '.join(On)}, got {on!r}")
    address = {On.dask: "DASK_SCHEDULER_ADDRESS", On.ray: "RAY_ADDRESS"}.get(On(on), "")
    if jobs is not None and os.environ.get(address):
        raise ArgumentError(f"`jobs` does not apply to a cluster that {address} names, which has its own, got {jobs}")
    check_installed(On(on))  # before anything is written
    first, every = _shard(shard)
    asked, folder = read_grid(Path(grid)), Path(out)
    _claim(folder, asked)
    # Cells of one recording are consecutive: they share its reading, and common results.
    cells = sorted(islice(asked.cells(), first, None, every), key=lambda cell: str(cell.keywords.get("recording")))
    jobs = num_processors() if jobs is None else jobs
    with kept_processes():
        done = play_cells([[cell] for cell in cells], folder, on=On(on), jobs=jobs, again=again)
    return SweepDone(folder=str(folder), **{one.name: getattr(done, one.name) for one in fields(done)})


def _shard(text: str | None) -> tuple[int, int]:
    """(place of the first cell, how many steps to the next)."""
    if text is None:
        return 0, 1
    number, slash, count = text.partition("/")
    if not (slash and number.isascii() and number.isdigit() and count.isascii() and count.isdigit()) or not (
        len(count) <= 7 and 1 <= int(number) <= int(count)
    ):
        raise ArgumentError(f"`shard` must be NUMBER/COUNT, the first is 1, as in 2/8, got {text!r}")
    return int(number) - 1, int(count)


def _claim(folder: Path, grid: SweepGrid) -> None:
    """Write the grid to the folder; raises TraceFormatError if it has another one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / GRID
    text = json.dumps(grid.asked, indent=1) + "\n"  # unsorted: the order of axes is that of the cells
    mine = folder / f".{os.getpid()}.{GRID}"
    try:
        write_whole(mine, text)
        os.link(mine, path)  # of several concurrent calls one is first
    except FileExistsError:
        pass
    finally:
        mine.unlink(missing_ok=True)
    there = _grid_of(folder)
    if there.asked == json.loads(text):
        return
    other = next(name for name, value in json.loads(text).items() if there.asked[name] != value)
    rule = "must be those of this grid, as each grid has a folder of its own"
    if other == "inputs":
        rule = "must be as they were when the sweep began; one that changed belongs in another folder"
        changed = [text for text, found in there.inputs.items() if grid.inputs.get(text) != found]
        raise TraceFormatError(path, other, rule, f"another {', '.join(changed) or 'file'}")
    raise TraceFormatError(path, other, rule, there.asked[other])


def _grid_of(folder: Path) -> SweepGrid:
    path = folder / GRID
    try:
        return grid_from(json.loads(path.read_bytes()))
    except OSError as error:
        raise TraceFormatError(path, "file", "must be there in the folder of a sweep", error.strerror) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceFormatError(path, "content", "must be a grid that a sweep wrote", str(error)) from None


def cells_of(folder: Path) -> Iterator[tuple[SweepCell, CellFound | None]]:
    """Every cell of the grid in its order, with its result."""
    grid, store = _grid_of(folder), CellStore(folder)
    for cell in tracked(grid.cells(), "reading", total=len(grid), unit="cells"):
        yield cell, store.read(key_of(cell.asked))


def collect(folder: str | Path, out: str | Path | None = None) -> pa.Table:
    """All cells of a sweep that were played, a row each in the order of the grid, written as one Parquet file.

    Args:
        folder: of the sweep.
        out: the file; None: `cells.parquet` in the folder.

    Returns:
        The table: keywords, figures, and `error`, why a cell has none ("" for the others). `missing` in its metadata is
            the number of cells not played.

    Raises:
        TraceFormatError: the folder is not of a sweep.
    """
    path = Path(folder) / TABLE if out is None else Path(out)
    rows, missing = list[dict[str, Any]](), 0
    for cell, found in cells_of(Path(folder)):
        missing += found is None
        if found is not None:
            rows.append({**cell.keywords, **(found.figures or {}), ERROR: found.failed})
    names = dict.fromkeys(name for row in rows for name in row if name != ERROR)
    columns = {name: _column([row.get(name) for row in rows]) for name in (*names, ERROR)}
    table = pa.table(columns).replace_schema_metadata({"missing": str(missing)})
    with whole_file(path) as part:
        pq.write_table(table, part)
    return table


def _column(values: Sequence[Any]) -> pa.Array:
    """A column of one type: mixed types and objects are written as JSON."""
    kinds = {type(value) for value in values} - {type(None)}
    if dict in kinds or len(kinds - {float}) > 1 or (float in kinds and not kinds <= {int, float}):
        return pa.array([value if value is None else json.dumps(value, sort_keys=True) for value in values])
    return pa.array([float(value) if float in kinds and value is not None else value for value in values])


def best_cells(
    folder: str | Path,
    *,
    objective: Sequence[str],
    subject_to: Sequence[str] = (),
    by: Sequence[str] = (),
) -> BestSettings:
    """The settings of a sweep than which no other one is better; figures are means over seeds.

    Args:
        folder: of the sweep.
        objective: figures by name, of which more is better; behind "min:" less. Of several: the Pareto front.
        subject_to: bounds that are kept, as "ttft_s_p99<0.5".
        by: keywords; the best for each of their values, as ["rate"].

    Raises:
        ValueError: no folder of a sweep, or a name that no cell has.
    """
    played = [(cell.keywords, found) for cell, found in cells_of(Path(folder))]
    rows = [(keywords, found.figures) for keywords, found in played if found is not None]
    return best_settings(
        rows,
        objectives=objective,
        subject_to=subject_to,
        by=by,
        varied=_grid_of(Path(folder)).varied,
        missing=len(played) - len(rows),
    )
