"""`paceline validate`: how true simulated seconds are on this machine."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ...arguments import ArgumentError
from ...installing import needs_torch
from ...laboratory.findings.figure import check_figure, write_figure
from ...laboratory.findings.validation_panels import validation_panels
from ...reports.tables.printed import Printed
from ..options import models
from ..options.comparison import ForeignProfileOption, PoliciesOption, batches
from ..options.load import CLUSTER, WORKLOAD
from ..options.observed import ObservedAsked, Replayed
from ..options.parsing import numbers
from ..options.recordings import named_recording
from ..output import JsonOption, check_file_path, check_json_path, show

_TraceOption = Annotated[
    Path | None,
    typer.Option(
        callback=named_recording,
        help="A .trace folder, recorded of the pool and these prompts, or to be forced; with --observed that "
        "acceptance is drawn from, by default the shipped one.",
    ),
]
_CostOption = Annotated[
    str | None,
    typer.Option(
        help="As of compare: FILE.profile, cpu, ...; default: here, the newest profile of this machine, and with "
        "--observed the cluster's own."
    ),
]
_PromptsOption = Annotated[
    Path | None, typer.Option(help="Those of the recording, JSONL as for run. None with a forced pool.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cells:
    """What each policy is run on, as it is typed: each field is an option."""

    batch: Annotated[str, typer.Option(metavar="N,...", help="Requests running at a time.")] = "1,4,16"
    tag: Annotated[list[str] | None, typer.Option(help="Only requests of this tag; repeatable. Default: all.")] = None
    limit: Annotated[
        int | None, typer.Option(help="Requests of each tag, at most, 8 by default; of --workload arrivals.", min=1)
    ] = None
    runs: Annotated[
        int, typer.Option(help="Runs of the models in each cell; the median counts, two or more tell chance.", min=1)
    ] = 3

    def given(self) -> dict[str, object]:
        """What is not as by default, by name."""
        return {one.name: getattr(self, one.name) != one.default for one in fields(self)}

    def refuse_beside_workload(self, figure: Path | None) -> None:
        """Refuse what has no part in --workload; raises ArgumentError for the first that was given."""
        for name, given in (("batch", self.batch != "1,4,16"), ("tag", self.tag), ("figure", figure)):
            if given:
                raise ArgumentError(f"`{name}` has no part in --workload, whose batches are the cluster's")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """What is served instead, if anything: each field is an option."""

    workload: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SPEC",
            help=f"Serve requests as they arrive, on --cluster; prompts and answers are the recording's. {WORKLOAD}",
        ),
    ] = None
    rate: Annotated[
        str | None,
        typer.Option(metavar="R,R,...", help="Of --workload: mean arrivals per second; default: the workload's own."),
    ] = None
    cluster: Annotated[str | None, typer.Option(metavar="FILE|DEVICE", help=f"Of --workload. {CLUSTER}")] = None
    seed: Annotated[int, typer.Option(help="Of --workload: of arrivals, and of the requests drawn for them.")] = 0

    def refuse_without_workload(self) -> None:
        """Refuse what only --workload takes; raises ArgumentError for the first that was given."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise ArgumentError(f"`{field.name}` goes with --workload")


def validate(
    *,
    trace: _TraceOption = None,
    prompts: _PromptsOption = None,
    pool: models.PoolOption = None,
    policy: PoliciesOption = None,
    cost: _CostOption = None,
    cells: _Cells,
    load: _Load,
    observed: ObservedAsked,
    allow_foreign_profile: ForeignProfileOption = False,
    threads: models.ThreadsOption = 1,
    chat: models.ChatOption = False,
    debug: models.DebugOption = False,
    figure: Annotated[Path | None, typer.Option(help="Draw into this .svg or .png.")] = None,
    json: JsonOption = None,
) -> None:
    """Run policies on the models and in the simulator, and say how far the seconds are apart, and where.

    With --workload: requests that are served as they arrive, and how far latencies are apart. With --observed: the same
    of a running server, without models here.
    """
    check_json_path(json, trace, prompts, figure, observed.observed, observed.calibrate)
    if observed.observed is not None:
        beside: dict[str, object] = {"prompts": prompts, "pool": pool, "figure": figure, "threads": threads != 1}
        beside |= {"allow_foreign_profile": allow_foreign_profile, "chat": chat, "debug": debug, **cells.given()}
        asked = Replayed(cluster=load.cluster, policy=policy, trace=trace, cost=cost, seed=load.seed)
        show(json, observed.validated(asked, beside | {"workload": load.workload, "rate": load.rate}))
        return
    recorded = observed.needed_without(trace)
    _check_figure(figure)
    of_both: dict[str, Any] = {"cost": cost or "here", "runs": cells.runs, "threads": threads, "debug": debug}
    of_both |= {"allow_foreign_profile": allow_foreign_profile, "chat": chat}
    if load.workload is not None:
        cells.refuse_beside_workload(figure)
        show(json, _under_load(pool, prompts, recorded, policy, load, limit=cells.limit, **of_both))
        return
    load.refuse_without_workload()
    with needs_torch():
        from ...studies.seconds.validate import validate as validate_seconds
    requests = 8 if cells.limit is None else cells.limit
    of_both |= {"batches": batches(cells.batch), "tags": cells.tag}
    found = validate_seconds(pool, prompts, recorded, policy, requests=requests, **of_both)
    show(json, found)
    if figure is not None:
        write_figure(validation_panels(found.cells), figure)


def _check_figure(figure: Path | None) -> None:
    """Refuse, before anything runs, a figure that could not be drawn or written after it."""
    check_figure(figure)
    if figure is not None:
        check_file_path("--figure", figure)


def _under_load(
    pool: Path | None,
    prompts: Path | None,
    trace: Path,
    policy: list[str] | None,
    load: _Load,
    **options: Any,  # noqa: ANN401 - see `validate_under_load`
) -> Printed:
    """Serve in both worlds; raises ValueError for what is missing."""
    if load.cluster is None:
        raise ValueError("--workload goes with --cluster FILE or --cluster DEVICE")
    if prompts is None:
        raise ValueError("--workload goes with --prompts FILE, those of the recording")
    with needs_torch():
        from ...studies.serving.validate_under_load import validate_under_load
    rates = None if load.rate is None else numbers("--rate", load.rate)
    assert load.workload is not None
    return validate_under_load(
        pool,
        prompts,
        trace,
        policy,
        workload=load.workload,
        cluster=load.cluster,
        rates=rates,
        seed=load.seed,
        **options,
    )
