"""`paceline sweep | collect | best | tune`: many settings of compare or simulate, kept one by one."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..base.errors import counted
from ..base.options import given, opt
from ..studies.options import (
    LoadOptions,
    OrdersOptions,
    PlacementOptions,
    PrefixOptions,
    ReplayOptions,
    SearchOptions,
    SeedsOptions,
)
from ..studies.sweeps import TABLE, best_cells, sweep_grid
from ..studies.sweeps import collect as collect_cells
from ..studies.tune import tune as tune_policy
from ..studies.tune_under_load import tune_under_load as tune_served
from .errors import Interrupted
from .options import FindRateOption, GivenClusterOption, GivenWorkloadOption, TraceOption
from .output import (
    FigureOption,
    JsonOption,
    check_cluster,
    check_figure_path,
    check_file_path,
    check_json_path,
    refuse_beside,
    refuse_without,
    say,
    show,
)

FAILED = 1  # exit code: a cell has no figures

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a sweep.")]
JobsOption = Annotated[
    int | None, typer.Option(help="Processes of this machine; default: one for each processor.", min=1, max=1024)
]


def sweep(
    *,
    grid: Annotated[Path, typer.Argument(metavar="GRID.toml", help="What to vary (docs/sweeps.md).")],
    out: Annotated[Path, typer.Option(help="Folder of the cells; cells that it holds are not played again.")],
    on: Literal["processes", "dask", "ray"] = opt(
        "processes", "Whose processes: this machine's, or those of a cluster (DASK_SCHEDULER_ADDRESS, RAY_ADDRESS)."
    ),
    jobs: JobsOption = None,
    shard: str | None = opt(None, "Every N-th cell from the I-th on; N calls with one folder play all.", metavar="I/N"),
    again: bool = opt(False, "Play cells again that failed before."),
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
    out: Path | None = opt(None, f"Parquet file; default: {TABLE} in the folder."),
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
    subject_to: list[str] | None = opt(
        None, "'p99_ttft < 0.5, speed_up > 1', with <, <=, > or >=; repeatable.", metavar="LIMITS"
    ),
    by: list[str] | None = opt(None, "The best for each value of this, as rate; repeatable.", metavar="KEYWORD"),
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
    batch: int = opt(1, "Requests running at a time.", least=1),
    jobs: JobsOption = None,
    replay: ReplayOptions,
    repeats: SeedsOptions,
    reorder: OrdersOptions,
    placement: PlacementOptions,
    prefixes: PrefixOptions,
    load: LoadOptions,
    workload: GivenWorkloadOption = None,
    rate: float | None = opt(
        None, "Mean arrivals per second, at which --slo is to be kept most; default: the workload's own."
    ),
    find_rate: FindRateOption = None,
    cluster: GivenClusterOption = None,
    figure: FigureOption = None,
    json: JsonOption = None,
) -> None:
    """Find the best values of a policy on a part of a recording, and say how good they are on the rest.

    Best is the fastest. With --workload it is the most goodput, by --slo at --rate, or the highest rate at which
    --find-rate holds.
    """
    check_json_path(json, out, trace, figure)
    check_figure_path(figure, out)
    options = {**vars(search), **vars(replay), **vars(repeats)}
    beside = {**given(reorder), **given(placement), **given(prefixes)}
    if workload is None:
        refuse_without("`workload`", **given(load), rate=rate, limits=find_rate, cluster=cluster)
        options |= {**vars(reorder), **vars(placement), **vars(prefixes)}
        show(json, tune_policy(policy, trace, out=out, jobs=jobs, batch=batch, **options), figure=figure)
        return
    idle = beside | ({} if search.over_tags == SearchOptions().over_tags else {"over_tags": search.over_tags})
    served_on = check_cluster(cluster)
    refuse_beside("--workload", **idle, batch=batch != 1)
    del options["over_tags"]
    served = {"workload": workload, "cluster": served_on, "rate": rate, "limits": find_rate, **vars(load)}
    show(json, tune_served(policy, trace, out=out, jobs=jobs, **served, **options), figure=figure)
