"""`paceline profile | validate`: what operations take on this machine, and how true simulated seconds are."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..base.errors import ArgumentError, check_within, needs_torch
from ..base.options import given, opt
from ..reports.figure import write_figure
from ..reports.panels import validation_panels
from ..studies.validate_observed import ObservedValidation, validate_observed
from .compare import batches
from .options import (
    RATES,
    RATES_METAVAR,
    WORKLOAD,
    ChatOption,
    DebugOption,
    ForeignProfileOption,
    GivenClusterOption,
    GivenSampling,
    PoliciesOption,
    PoolOption,
    ThreadsOption,
    named_recording,
)
from .output import (
    FigureOption,
    JsonOption,
    check_figure_path,
    check_file_path,
    check_json_path,
    refuse_beside,
    refuse_without,
    show,
)
from .typed import numbers

if TYPE_CHECKING:
    from ..studies.validate_under_load import LoadValidation

UNFIT = 1  # exit code: a profile no longer fits
BEYOND = 1  # exit code: an error is beyond its bound
_DecidingTraceOption = Annotated[
    Path | None,
    typer.Option(callback=named_recording, help="With a forced pool: the .trace folder that says what is accepted."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounds:
    """Options: how often forwards are timed."""

    repeats: int = opt(3, "Times each shape of a forward is timed.", least=3)
    most_drift: float = opt(
        0.1, "Largest change of seconds while they are measured, as a share; beyond it the profile is refused."
    )
    restart: bool = opt(False, "Do not continue an interrupted profile of the last hour.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shapes:
    """Options: the grid of forwards."""

    rows: tuple[int, ...] | None = opt(
        None, "Rows of the forwards that are timed. Default: 1,2,3,6,12,24.", metavar="N,..."
    )
    new_tokens: tuple[int, ...] | None = opt(
        None, "New tokens of each row. Default: 1,2,3,5,7,10,20,40,80,160.", metavar="N,..."
    )
    context_tokens: tuple[int, ...] | None = opt(
        None, "Tokens each row holds. Default: 0,60,200,480,1100,2500.", metavar="N,..."
    )

    def grid(self) -> Any:  # noqa: ANN401 - of the runtime, which needs torch
        """The grid; raises ArgumentError for axes that do not increase."""
        with needs_torch():
            from ..runtime.profiling.forwards import ShapeGrid
        try:
            return ShapeGrid(**given(self))
        except ValueError as error:
            raise ArgumentError(f"the grid's {error}") from None


def profile(
    *,
    file: Annotated[
        Path | None, typer.Argument(help="With --check: the .profile file; default: what --cost here uses.")
    ] = None,
    check: bool = opt(False, "Only say whether a profile still fits; exit 1 if it does not."),
    pool: PoolOption = None,
    prompts: Path | None = opt(None, "JSONL; some are decoded to time operations. Default: those beside the pool."),
    trace: _DecidingTraceOption = None,
    out: Path | None = opt(None, "The .profile file to write; default: kept where --cost here finds it."),
    policy: list[str] | None = opt(None, "Also time how long this policy takes to decide; repeatable."),
    shapes: _Shapes,
    rounds: _Rounds,
    sampling: GivenSampling,
    threads: ThreadsOption = 1,
    chat: ChatOption = False,
    debug: DebugOption = False,
    json: JsonOption = None,
) -> None:
    """Measure the seconds of a pool's operations on this machine, for --cost here: forwards by shape, and the rest."""
    mode = sampling.given()
    check_json_path(json, out, prompts, trace, file)
    if check:
        beside: dict[str, object] = {"prompts": prompts, "recording": trace, "out": out, "policy": policy}
        beside |= {**given(shapes), **dict.fromkeys(given(rounds), True), "sampling": mode is not None, "chat": chat}
        refuse_beside("`check`, which measures a few forwards only", **beside)
        with needs_torch():
            from ..studies.profile_check import check_profile
        checked = check_profile(pool, file, threads=threads, debug=debug)
        show(json, checked)
        if not checked.fits:
            raise typer.Exit(UNFIT)
        return
    if file is not None:
        raise ValueError(f"FILE goes with --check, got {str(file)!r}; --out names the file to write")
    check_file_path("--out", out)
    with needs_torch():
        from ..studies.profile import profile as profile_pool
    options = asdict(rounds) | {"policies": policy or (), "threads": threads, "chat": chat, "debug": debug}
    found = profile_pool(pool, prompts, recording=trace, out=out, sampling=mode, grid=shapes.grid(), **options)
    show(json, found)


_RecordedTraceOption = Annotated[
    Path | None,
    typer.Option(
        callback=named_recording,
        help="A .trace folder of this pool and these prompts, or the one that a forced pool follows; with --observed "
        "the recording that acceptance is drawn from, by default the rounds of the run.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cells:
    """Options: what each policy is run on."""

    batch: str = opt("1,4,16", "Requests running at a time.", metavar="N,...")
    tag: list[str] | None = opt(None, "Only requests of this tag; repeatable. Default: all.")
    limit: int | None = opt(None, "Most requests of each tag, 8 by default; with --workload, most arrivals.", least=1)
    runs: int = opt(
        3, "Runs of the models in each cell; the median counts, and two or more show their spread.", least=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """Options: what is served instead, if anything."""

    workload: str | None = opt(
        None,
        f"Serve requests as they arrive, on --cluster; prompts and answers are the recording's. {WORKLOAD}",
        metavar="FILE|SPEC",
    )
    rate: str | None = opt(None, RATES, metavar=RATES_METAVAR)
    cluster: GivenClusterOption = None
    seed: int = opt(0, "With --workload: seed of arrivals, and of the requests drawn for them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """Options: largest errors that pass."""

    mean_bound: float | None = opt(
        None,
        "Exit 1 where the median error of total seconds (with --workload: of mean latencies) is larger. With "
        "--observed: largest error of means, medians, throughput and total time, 0.1 by default.",
    )
    tail_bound: float | None = opt(
        None,
        "Exit 1 where the worst of these errors is larger. With --observed: largest error of p90 and p99, 0.2 "
        "by default.",
    )

    def exit_beyond(self, median: float, worst: float) -> None:
        """Raise Exit if an error exceeds its bound, after a line that says so."""
        errors = {"--mean-bound": (median, self.mean_bound), "--tail-bound": (worst, self.tail_bound)}
        beyond = [
            f"{error:.1%} is beyond {name} {bound:g}"
            for name, (error, bound) in errors.items()
            if bound is not None and not error <= bound
        ]
        if beyond:
            typer.echo(f"paceline: {'; '.join(beyond)}", err=True)
            raise typer.Exit(BEYOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedAsked:
    """Options: which observed run is compared, and how."""

    observed: str | None = opt(
        None,
        "Judge the simulator, on --cluster, by what paceline observe saw of a server, or by the detailed "
        "result of a benchmark. K: tokens that a round drafts, where the run does not tell.",
        metavar="RUN[=K]",
    )
    calibrate: list[str] | None = opt(
        None,
        "With --observed: fit seconds to this other run of the server first. Repeat it: without the drafter, "
        "and with it at one draft length or more.",
        metavar="RUN[=K]",
    )
    write_cost: Path | None = opt(None, "With --calibrate: write what was fitted, for --cost.", metavar="FILE.json")

    def validated(
        self, load: _Load, policy: list[str] | None, trace: Path | None, cost: str | None, bounds: _Bounds
    ) -> ObservedValidation:
        """The validation; raises ValueError for a missing option."""
        assert self.observed is not None
        if load.cluster is None:
            raise ArgumentError("`observed` goes with `cluster` FILE or `cluster` DEVICE")
        if policy is not None and len(policy) > 1:
            raise ValueError(f"--policy must be given once beside --observed, got {', '.join(policy)}")
        return validate_observed(
            self.observed,
            cluster=load.cluster,
            calibrate_on=self.calibrate or (),
            write_cost=self.write_cost,
            policy=None if policy is None else policy[0],
            recording=trace,
            cost=cost,
            seed=load.seed,
            **given(bounds),
        )

    def needed_without(self, trace: Path | None) -> Path:
        """The recording, needed without --observed; raises ArgumentError without it, or for an option of --observed."""
        refuse_without("`observed`", **given(self))
        if trace is None:
            raise ArgumentError("`trace` must be given, except with `observed`")
        return trace


def validate(
    *,
    trace: _RecordedTraceOption = None,
    prompts: Path | None = opt(None, "Prompts of the recording, JSONL as for run; none with a forced pool."),
    pool: PoolOption = None,
    policy: PoliciesOption = None,
    cost: str | None = opt(
        None,
        "As of compare: FILE.profile, cpu, ...; default: here, the newest profile of this machine, and with "
        "--observed the cluster's own.",
    ),
    cells: _Cells,
    load: _Load,
    observed: ObservedAsked,
    bounds: _Bounds,
    allow_foreign_profile: ForeignProfileOption = False,
    threads: ThreadsOption = 1,
    chat: ChatOption = False,
    debug: DebugOption = False,
    figure: FigureOption = None,
    json: JsonOption = None,
) -> None:
    """Run policies on the models and in the simulator, and say how far apart the seconds are, and where.

    With --workload: requests that are served as they arrive, and how far latencies are apart. With --observed: the same
    of a running server, without models here. Exit 1 if an error is beyond its bound; without --observed there is none
    unless --mean-bound or --tail-bound gives one.
    """
    for name, bound in given(bounds).items():
        check_within(f"`{name}`", bound, "(0, 10]")
    runs = [Path(run) for run in (observed.observed, *(observed.calibrate or ())) if run is not None]
    check_json_path(json, trace, prompts, figure, observed.write_cost, *runs)
    check_file_path("--write-cost", observed.write_cost)
    if observed.observed is not None:
        beside: dict[str, object] = {"prompts": prompts, "pool": pool, "figure": figure, "threads": threads != 1}
        beside |= {"allow_foreign_profile": allow_foreign_profile, "chat": chat, "debug": debug}
        beside |= {**dict.fromkeys(given(cells), True), "workload": load.workload, "rate": load.rate}
        refuse_beside("`observed`, whose requests are those of the run", **beside)
        judged = observed.validated(load, policy, trace, cost, bounds)
        show(json, judged)
        if not judged.within:
            raise typer.Exit(BEYOND)
        return
    recorded = observed.needed_without(trace)
    check_figure_path(figure)
    of_both: dict[str, Any] = {"cost": cost or "here", "runs": cells.runs, "threads": threads, "debug": debug}
    of_both |= {"allow_foreign_profile": allow_foreign_profile, "chat": chat}
    if load.workload is not None:
        given_cells = {"batch": cells.batch != "1,4,16", "tag": cells.tag}
        refuse_beside("--workload, whose batches are the cluster's", **given_cells, figure=figure)
        served = _under_load(pool, prompts, recorded, policy, load, limit=cells.limit, **of_both)
        show(json, served)
        bounds.exit_beyond(*served.errors)
        return
    refuse_without("--workload", **given(load))
    with needs_torch():
        from ..studies.validate import validate as validate_seconds
    requests = 8 if cells.limit is None else cells.limit
    of_both |= {"batches": batches(cells.batch), "tags": cells.tag}
    found = validate_seconds(pool, prompts, recorded, policy, requests=requests, **of_both)
    show(json, found)
    if figure is not None:
        write_figure(validation_panels(found.cells), figure)
    bounds.exit_beyond(found.verdict.median_error, found.verdict.worst_error)


def _under_load(
    pool: Path | None,
    prompts: Path | None,
    trace: Path,
    policy: list[str] | None,
    load: _Load,
    **options: Any,  # noqa: ANN401 - see `validate_under_load`
) -> "LoadValidation":
    """Serve in both worlds; raises ValueError for a missing option."""
    if load.cluster is None:
        raise ValueError("--workload goes with --cluster FILE or --cluster DEVICE")
    if prompts is None:
        raise ValueError("--workload goes with --prompts FILE, those of the recording")
    with needs_torch():
        from ..studies.validate_under_load import validate_under_load
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
