"""`paceline validate`: how true simulated seconds are on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...installing import needs_torch
from ...laboratory.findings.figure import check_figure, write_figure
from ...laboratory.findings.validation_panels import validation_panels
from ..options import models
from ..options.comparison import ForeignProfileOption, PoliciesOption
from ..options.parsing import batches
from ..output import JsonOption, check_file_path, check_json_path, show

_TraceOption = Annotated[
    Path, typer.Option(help="A .trace folder, recorded of the pool and these prompts, or to be forced.")
]
_PromptsOption = Annotated[
    Path | None, typer.Option(help="Those of the recording, JSONL as for run. None with a forced pool.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cells:
    """What each policy is run on, as it is typed: each field is an option."""

    batch: Annotated[str, typer.Option(metavar="N,...", help="Requests running at a time.")] = "1,4,16"
    tag: Annotated[list[str] | None, typer.Option(help="Only requests of this tag; repeatable. Default: all.")] = None
    limit: Annotated[int, typer.Option(help="Requests of each tag, at most.", min=1)] = 8
    runs: Annotated[
        int, typer.Option(help="Runs of the models in each cell; the median counts, two or more tell chance.", min=1)
    ] = 3


def validate(
    *,
    trace: _TraceOption,
    prompts: _PromptsOption = None,
    pool: models.PoolOption = None,
    policy: PoliciesOption = None,
    cost: Annotated[
        str, typer.Option(help="As of compare: here (the newest profile of this machine), FILE.profile, cpu, ...")
    ] = "here",
    cells: _Cells,
    allow_foreign_profile: ForeignProfileOption = False,
    threads: models.ThreadsOption = 1,
    debug: models.DebugOption = False,
    figure: Annotated[Path | None, typer.Option(help="Draw into this .svg or .png.")] = None,
    json: JsonOption = None,
) -> None:
    """Run policies on the models and in the simulator, and say how far the seconds are apart, and where."""
    check_json_path(json, trace, prompts, figure)
    check_figure(figure)
    if figure is not None:
        check_file_path("--figure", figure)
    with needs_torch():
        from ...studies.seconds.validate import validate as validate_seconds
    found = validate_seconds(
        pool,
        prompts,
        trace,
        policy,
        cost=cost,
        batches=batches(cells.batch),
        tags=cells.tag,
        requests=cells.limit,
        runs=cells.runs,
        allow_foreign_profile=allow_foreign_profile,
        threads=threads,
        debug=debug,
    )
    show(json, found)
    if figure is not None:
        write_figure(validation_panels(found.cells), figure)
