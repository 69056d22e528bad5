"""`paceline sweep | collect | best | tune`: many settings of compare or simulate, kept one by one."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..base.errors import counted
from ..studies.options import OrdersOptions, PlacementOptions, PrefixOptions, ReplayOptions, SearchOptions, SeedsOptions
from ..studies.sweeps import TABLE, best_cells, sweep_grid
from ..studies.sweeps import collect as collect_cells
from ..studies.tune import tune as tune_policy
from .errors import Interrupted
from .options import TraceOption
from .output import FigureOption, JsonOption, check_figure_path, check_file_path, check_json_path, say, show

FAILED = 1  # exit code: a cell has no figures

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a sweep.")]
JobsOption = Annotated[
    int | None, typer.Option(help="Processes of this machine; default: one for each processor.", min=1, max=1024)
]


def sweep(
    *,
    grid: Annotated[Path, typer.Argument(metavar="GRID.toml", help="What to vary (docs/sweeps.md).")],
    out: Annotated[Path, typer.Option(help="Folder of the cells; cells that it holds are not played again.")],
    on: Annotated[
        Literal["processes", "dask", "ray"],
        typer.Option(
            help="Whose processes: this machine's, or those of a cluster (DASK_SCHEDULER_ADDRESS, RAY_ADDRESS)."
        ),
    ] = "processes",
    jobs: JobsOption = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Every N-th cell from the I-th on; N calls with one folder play all."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Play cells again that failed before.")] = False,
    json: JsonOption = None,
) -> None:
    """Play every cell of a grid, a call of compare or simulate each, and keep it in a file of its own.

    A cell that stands in the folder is not played again: the same command continues after Ctrl-C or a kill. Exit 1 if a
    cell failed.
    """
    check_json_path(json, grid, out)
    done = sweep_grid(grid, out=out, on=on, jobs=jobs, shard=shard, again=again)
    show(json, done)
    if done.missing:
        raise Interrupted(f"{counted(done.kept + done.played, 'cell')} of {done.total:,} are kept")
    if done.failed or done.lost:
        raise typer.Exit(FAILED)


def collect(
    folder: FolderArgument,
    out: Annotated[Path | None, typer.Option(help=f"Parquet file; default: {TABLE} in the folder.")] = None,
) -> None:
    """Gather the cells of a sweep in one Parquet file, in the order of the grid."""
    path = folder / TABLE if out is None else out
    check_file_path("--out", path)
    found = collect_cells(folder, path)
    missing = int(found.schema.metadata[b"missing"])
    said = f"; {counted(missing, 'cell')} more not played yet" if missing else ""
    say(f"{path}: {counted(found.num_rows, 'cell')}, {counted(found.num_columns, 'column')}{said}")


def best(
    folder: FolderArgument,
    *,
    objective: Annotated[
        list[str],
        typer.Option(
            metavar="FIGURE|min:FIGURE",
            help="Figure to maximise, or to minimise after min:; several give their Pareto front.",
        ),
    ],
    subject_to: Annotated[
        list[str] | None,
        typer.Option(metavar="LIMITS", help="'p99_ttft < 0.5, speed_up > 1', with <, <=, > or >=; repeatable."),
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option(metavar="KEYWORD", help="The best for each value of this, as rate; repeatable.")
    ] = None,
    figure: FigureOption = None,
    json: JsonOption = None,
) -> None:
    """Print the best settings of a sweep by means over seeds; of several objectives, the Pareto front."""
    check_json_path(json, folder, figure)
    check_figure_path(figure, folder)
    show(json, best_cells(folder, objective=objective, subject_to=subject_to or (), by=by or ()), figure=figure)


def tune(
    *,
    policy: Annotated[
        str,
        typer.Argument(
            help="With ranges: adaptive,most=2..12, draft:1..8/target, my.py:Ewma,alpha=0.01..1:log,kind=a|b."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the trials and their trail; the same command continues in it.")],
    search: SearchOptions,
    trace: TraceOption = None,
    batch: Annotated[int, typer.Option(help="Requests running at a time.", min=1)] = 1,
    jobs: JobsOption = None,
    replay: ReplayOptions,
    repeats: SeedsOptions,
    reorder: OrdersOptions,
    placement: PlacementOptions,
    prefixes: PrefixOptions,
    figure: FigureOption = None,
    json: JsonOption = None,
) -> None:
    """Find the fastest values of a policy on a part of a recording, and say how fast they are on the rest."""
    check_json_path(json, out, trace, figure)
    check_figure_path(figure, out)
    records = (search, replay, repeats, reorder, placement, prefixes)
    options = {name: value for record in records for name, value in vars(record).items()}
    show(json, tune_policy(policy, trace, out=out, jobs=jobs, batch=batch, **options), figure=figure)
