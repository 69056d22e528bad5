"""What SpecRouter's constants and ingredients are worth: how far ratios to the best static chain move without them.

    python -m paceline.laboratory.arena.varied --cells '*/even/batch-1' --cells '*/steep/batch-1'

Runs are kept below the folder of the arena's results; a study that was cut short goes on from them.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from ....counted import counted
from ....machine import kept_folder
from ....reports.tables.printed import console_of_output, print_tables
from ..asked.cells import asked_cells
from ..board.runs import BoardRuns
from ..cell import ArenaCell
from ..run import ArenaResults
from ..split import Side, Split, read_split
from .study import Study

CELLS = ("*/even/batch-1", "*/steep/batch-1", "*/near/batch-1")


def main() -> int:
    """Play, and print the tables; exit code 1 if a run failed or was not played, 2 for what cannot be asked for."""
    asked = _asked()
    split = read_split()
    try:
        cells = _cells(asked.cells or CELLS, split)
        study = Study(cells=cells, constants=asked.only != "ingredients", ingredients=asked.only != "constants")
        results = study.play(asked.work or kept_folder() / "arena", seeds=asked.seeds, jobs=asked.jobs)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    remarks = list(_remarks(results))
    *tables, last = study.tables(BoardRuns(results.played), split)
    grids = [*(rows.grid() for rows in tables), last.grid(*remarks)]
    print_tables(console_of_output(), grids)
    return 0 if results.is_whole and not results.failed else 1


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", action="append", help=f"as of `paceline arena`; repeatable; by default {CELLS}")
    parser.add_argument("--only", choices=("constants", "ingredients"), help="by default both")
    parser.add_argument("--seeds", type=int, default=1, help="orders of the requests of each cell")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--work", type=Path, help="folder of recordings and results; default: the user's cache")
    return parser.parse_args()


def _cells(patterns: list[str] | tuple[str, ...], split: Split) -> list[ArenaCell]:
    """The cells of all patterns, by recording, as a process plays them."""
    found = dict.fromkeys(cell for pattern in patterns for cell in asked_cells(split, Side.all, pattern))
    recordings = split.recordings(Side.all)
    return sorted(found, key=lambda cell: recordings.index(cell.recording))


def _remarks(results: ArenaResults) -> Iterator[str]:
    for name, why in results.missing.items():
        yield f"recording {name} is left out: {why}"
    # One policy's words stand for those of all its variants.
    whys: dict[str, list[str]] = {}
    for one in results.left_out:
        whys.setdefault(one.cell.recording, []).append(one.why)
    for name, of_recording in whys.items():
        yield f"recording {name}: {counted(len(of_recording), 'run')} left out: {of_recording[0]}"
    yield from map(str, results.failed)
    if not results.is_whole:
        yield "cut short: what is missing is played when this is run again"


if __name__ == "__main__":
    sys.exit(main())
