"""`paceline arena`: policies over a matrix of recordings, ladders of costs and loads."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...counted import counted
from ...laboratory.arena.asked.cells import asked_cells
from ...laboratory.arena.asked.field import asked_field
from ...laboratory.arena.board.leaderboard import Leaderboard, leaderboard
from ...laboratory.arena.board.runs import BoardRuns
from ...laboratory.arena.board.tables import lossy, ranking, regret
from ...laboratory.arena.board.write import check_page, write_leaderboard
from ...laboratory.arena.cell import ArenaCell
from ...laboratory.arena.played import BEST_STATIC, outcome_to_json
from ...laboratory.arena.run import MOST_SEEDS, ArenaAsked, ArenaResults, run_arena
from ...laboratory.arena.split import SPLIT_FILE, Side, Split, read_split
from ...laboratory.findings.table import Cell, cell, table
from ...machine import kept_folder
from ..errors import Interrupted
from ..options.comparison import PoliciesOption
from ..output import JsonOption, check_json_path, print_table, say, write_json

FAILED = 1  # exit code: a run ended in an error that is nobody's input


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is played, as it is typed: each field is an option."""

    split: Annotated[
        Side, typer.Option(help="Recordings that constants are settled on, those that are reported, or all.")
    ] = Side.all
    split_file: Annotated[
        Path | None, typer.Option(help="TOML with recordings to tune on and to report; default: the committed split.")
    ] = None
    cells: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="RECORDING/LADDER/LOAD with * for anything, as */batch-1; default: all."),
    ] = None
    policy: PoliciesOption = None
    add_policy: Annotated[
        list[str] | None, typer.Option(help="As --policy, besides the default field; repeatable.")
    ] = None
    seeds: Annotated[
        int, typer.Option(help="Orders of the requests; the first is the recorded one.", min=1, max=MOST_SEEDS)
    ] = 2
    jobs: Annotated[int, typer.Option(help="Processes.", min=1, max=1024)] = 2
    work: Annotated[Path | None, typer.Option(help="Folder of recordings and results; default: the user's cache.")] = (
        None
    )

    make: Annotated[bool, typer.Option("--make", help="Make recordings that lack, pools too: minutes for each.")] = (
        False
    )
    oracles: Annotated[
        bool, typer.Option("--oracles", help="Play oracles too, in some cells: half a minute for each.")
    ] = False

    def to_play(self, split: Split) -> ArenaAsked:
        """What it asks for; raises ValueError for what is none."""
        return ArenaAsked(
            cells=asked_cells(split, self.split, self.cells),
            policies=asked_field(self.policy, self.add_policy),
            seeds=self.seeds,
            jobs=self.jobs,
            work=self.work if self.work is not None else kept_folder() / "arena",
            make=self.make,
            oracles=self.oracles,
            tuning=split.tune,
        )


def arena(
    *,
    asked: _Asked,
    page: Annotated[
        Path | None, typer.Option(help="NAME.md to write the leaderboard into, with figures/NAME.svg and NAME.json.")
    ] = None,
    by_cell: Annotated[bool, typer.Option("--by-cell", help="Print every cell's ratios too.")] = False,
    json: JsonOption = None,
) -> None:
    """Play policies in cells of recording, ladder of costs and load, beside the best static chain of each.

    Results are kept: a run that was cut short goes on from them. Exit 1 if a run failed.
    """
    check_json_path(json, asked.work, *(check_page(page) if page is not None else ()))
    split = read_split(asked.split_file or SPLIT_FILE)
    to_play = asked.to_play(split)
    if page is not None and not any(cell.recording in split.report for cell in to_play.cells):
        raise ValueError("--page needs cells to report, and --split and --cells choose none of them")
    results = run_arena(to_play)
    if not results.is_whole:
        raise Interrupted(f"{counted(len(results.played), 'run')} of the arena are kept, and not played again")
    board = leaderboard(BoardRuns(results.played), split, results.missing, gaps=tuple(results.gaps()))
    if page is not None:
        write_leaderboard(board, page)
    if json is not None:
        write_json(board.to_json() | _runs_json(results), json)
    else:
        if by_cell and board.policies:
            print_table(table("", [_of_cell(board, cell) for cell in board.runs.cells]).grid())
        _print(board, results)
    if results.failed:
        raise typer.Exit(FAILED)


def _of_cell(board: Leaderboard, where: ArenaCell) -> list[Cell]:
    """The best static chain of a cell in the recorded order, and what others reach of its speed."""
    ratios = [cell(name, board.runs.ratios(name).get(where), "", 3) for name in board.policies]
    best = board.runs.of(BEST_STATIC, where)[0]
    return [cell("cell", str(where)), cell("best static chain", best.chain), *ratios]


def _print(board: Leaderboard, results: ArenaResults) -> None:
    if board.lossless:
        print_table(ranking(board).grid())
    if board.lossy:
        print_table(lossy(board).grid())
    if board.regrets():
        print_table(regret(board).grid())
    for line in _lines(results):
        say(line)


def _lines(results: ArenaResults) -> Iterator[str]:
    for name, why in results.missing.items():
        yield f"recording {name} is left out: {why}"
    for (policy, why), count in Counter((one.policy, one.why) for one in results.left_out).items():
        yield f"{policy} is left out of {counted(count, 'run')}: {why}"
    yield from map(str, results.failed)


def _runs_json(results: ArenaResults) -> dict[str, Any]:
    return {
        "played": [outcome_to_json(one) for one in results.played],
        "left_out": [outcome_to_json(one) for one in results.left_out],
        "failed": [asdict(one) | {"cell": str(one.cell)} for one in results.failed],
    }
