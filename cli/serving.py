"""`paceline simulate | workload | cluster | metrics | observe`, and `compare --workload`: requests as they arrive."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..base.errors import ArgumentError, counted
from ..base.options import opt
from ..runs.observed import is_observed
from ..studies.load import cluster as show_cluster
from ..studies.load import compare_under_load, describe_workload
from ..studies.observe import Asking, Observed, shown_run
from ..studies.observe import observe as drive_server
from ..studies.observe_turns import MOST_TURNS, ObservedTurns, observe_in_turns
from ..studies.options import LoadOptions, ReplayOptions, SeedsOptions, SimulateOptions, TimelineOptions
from ..studies.rates import find_rates
from ..studies.recommend_again import simulate_again
from ..studies.report import report as report_of
from ..studies.serving import BrokenWorkloadError
from ..studies.serving import metrics as metrics_of_runs
from ..studies.serving import simulate as serve_workload
from ..studies.timeline import check_timeline
from ..studies.timeline import timeline as timeline_of_runs
from ..studies.what_if import what_if
from ..traces.workloads import WorkloadOptions
from ..traces.workloads.arrival import WorkloadChanges
from .errors import Interrupted, nothing_kept
from .options import CLUSTER, WORKLOAD, FromOption, ModelsOption, RateOption, SloOption, TraceOption, named_recording
from .output import (
    FigureOption,
    JsonOption,
    check_cluster,
    check_figure_path,
    check_file_path,
    check_html_path,
    check_json_path,
    check_new_folder,
    finished_first,
    say,
    show,
    show_again,
)
from .typed import option_of, promised, rates


def cluster(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DEVICE",
            help="A cluster file (docs/cluster.md), or a device of the sheet (a100, h100, h200, rtx4090, ...): one "
            "replica on it, everything else by default.",
        ),
    ],
    trace: TraceOption = None,
    models: ModelsOption = None,
    json: JsonOption = None,
) -> None:
    """Print the replicas of a cluster, their limits, and where their memory goes: weights, reserve, blocks of KV."""
    check_json_path(json, file)
    show(json, show_cluster(file, trace, models=models))


def metrics(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders that simulate --out wrote; or one that observe --out did."),
    ],
    slo: SloOption = None,
    figure: FigureOption = None,
    json: JsonOption = None,
) -> None:
    """Print latencies, throughput, goodput, memory and acceptance of serving runs, or of one observed run."""
    check_json_path(json, figure, *runs)
    check_figure_path(figure)
    observed = [run for run in runs if is_observed(run)]
    if not observed:
        show(json, metrics_of_runs(runs, slo=promised(slo)), figure=figure)
        return
    if len(runs) > 1:
        raise ValueError(f"{observed[0]}: an observed run stands alone, got {len(runs)} runs")
    for name, value in (("slo", slo), ("figure", figure)):
        if value:
            raise ArgumentError(f"`{name}` is for simulated runs, {observed[0]} was observed")
    show(json, shown_run(observed[0]))


def timeline(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Folders of simulate --out, run --out, compare --log or observe --out; side by side."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file: .json.gz, or .json. One that is there is replaced.")],
    asked: TimelineOptions,
    json: JsonOption = None,
) -> None:
    """Write runs as a timeline for Perfetto or Chrome's tracing: members, requests, rounds, counters."""
    check_timeline(out)
    check_file_path("--out", out)
    check_json_path(json, out, *runs)
    show(json, timeline_of_runs(runs, out, **vars(asked)))


def report(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|COMPARISON|SWEEP...",
            help="Folders of simulate, run, compare --log, observe or sweep, and files of compare, simulate or run "
            "--json. Served runs stand side by side.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page, .html. One that is there is replaced.")],
) -> None:
    """Write one self-contained HTML page to read and to send: the answer, tables that sort, pictures, a timeline."""
    check_html_path("--out", out, *inputs)
    say(f"{report_of(inputs, out)}: open it in a browser")


ALL_FAILED = 1  # exit code: no request was answered


def observe(
    *,
    url: Annotated[str, typer.Argument(metavar="URL", help="http://HOST:PORT of an OpenAI-compatible server.")],
    workload: Annotated[str, typer.Option(metavar="FILE|SPEC", help=WORKLOAD)],
    prompts: Annotated[Path, typer.Option(help="Texts that are sent, JSONL as for run.")],
    out: Path | None = opt(None, "New folder for the run, which paceline validate --observed reads."),
    concurrency: int | None = opt(
        None, "Closed loop: keep N requests under way, whatever their times of arrival.", metavar="N"
    ),
    rate: RateOption = None,
    changes: WorkloadChanges,
    asking: Asking,
    policy: list[str] | None = opt(
        None,
        "One that paceline serve was started with, sent with each request. Repeat it to measure policies in "
        "turns: what each gains over the first one, and whether the machine is quiet enough to tell.",
    ),
    turns: int | None = opt(
        None,
        "With several --policy: times that each is measured, at seeds from --seed on. Default: 3.",
        metavar="N",
        least=1,
        most=MOST_TURNS,
    ),
    seed: int = opt(0, "Seed of the workload and the order of prompts; also sent with each request."),
    json: JsonOption = None,
) -> None:
    """Drive a running server with a workload and measure it: TTFT, TPOT, gaps, E2E, tokens, reported acceptance.

    Ctrl-C stops the run and keeps what was measured. Exit 1 if no request was answered.
    """
    check_json_path(json, workload, prompts, out)
    check_new_folder("--out", out)
    options = WorkloadOptions(rate=rate, seed=seed, **vars(changes))
    named: dict[str, Any] = {"options": options, "concurrency": concurrency, "out": out}
    found: Observed | ObservedTurns
    if turns is not None or len(policy or ()) > 1:
        named |= {"policies": policy or (), "turns": turns or 3}
        found = observe_in_turns(url, workload, prompts, asking=asking, **named)
    else:
        found = drive_server(url, workload, prompts, asking=asking, policy=policy[0] if policy else None, **named)
    show(json, found)
    finished, requests = found.answered
    if found.interrupted:
        kept = "shown" if out is None else "kept"
        raise Interrupted(f"{finished:,} of {counted(requests, 'request')} finished and are {kept}")
    if not finished:
        raise typer.Exit(ALL_FAILED)


def simulate(
    *,
    context: typer.Context,
    workload: str | None = opt(None, f"What is served. {WORKLOAD}", metavar="FILE|SPEC"),
    cluster: str | None = opt(None, f"What serves. {CLUSTER}", metavar="FILE|DEVICE"),
    from_: FromOption = None,
    policy: list[str] | None = opt(None, "One, as --policy of compare, for replicas that have none of their own."),
    trace: TraceOption = None,
    out: Path | None = opt(None, "New folder for the run, which paceline metrics reads."),
    events: Annotated[bool, option_of(SimulateOptions, "events")] = False,
    rate: RateOption = None,
    load: LoadOptions,
    replay: ReplayOptions,
    figure: FigureOption = None,
    json: JsonOption = None,
) -> None:
    """Serve a workload under one policy: latencies, throughput, goodput, memory, acceptance.

    Ctrl-C stops the run and keeps what was simulated, and so does a row of the workload that is wrong.
    """
    if from_ is not None:
        show_again(context, json, from_, simulate_again)
        return
    if workload is None or cluster is None:
        raise ValueError("simulate takes --workload and --cluster, as in --cluster h100, or --from FILE#N")
    if policy is not None and len(policy) > 1:
        raise ValueError(f"--policy must be given once, got {', '.join(policy)}; compare takes several")
    if events and out is None:
        raise ArgumentError("`events` goes with `out`, the folder that keeps them")
    check_figure_path(figure, workload, cluster, out)
    check_json_path(json, workload, cluster, out, figure, replay.cost)
    check_new_folder("--out", out)
    try:
        options = {"rate": rate, "out": out, "events": events, **vars(load), **vars(replay)}
        found = serve_workload(workload, policy[0] if policy else None, trace, cluster=cluster, **options)
    except BrokenWorkloadError as broken:
        if broken.run is not None:
            show(json, broken.run)
        raise broken.error from None
    show(json, found, figure=figure)
    if found.cut:
        raise Interrupted("the run is whole; it was not served again, so the range of its cost is missing")
    if found.interrupted:
        metrics = found.rows[0].runs[0].metrics
        kept = "shown" if out is None else "kept"
        raise Interrupted(f"{metrics.finished:,} of {counted(metrics.requests, 'request')} finished and are {kept}")


def whatif(
    *,
    change: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE",
            help="rate=2x, device=h200, policy=draft:2/target, prefix_cache=off, draft.seconds=0.5x, "
            "draft.acceptance=+0.05; repeat it for others.",
        ),
    ],
    workload: Annotated[str, typer.Option(metavar="FILE|SPEC", help=WORKLOAD)],
    cluster: Annotated[str, typer.Option(metavar="FILE|DEVICE", help=CLUSTER)],
    policy: Annotated[str, typer.Option(help="As --policy of compare, for replicas that have none of their own.")],
    trace: TraceOption = None,
    rate: RateOption = None,
    load: LoadOptions,
    replay: ReplayOptions,
    repeats: SeedsOptions,
    json: JsonOption = None,
) -> None:
    """Serve a workload with each change alone and with all together, and compare on the same requests."""
    check_json_path(json, workload, cluster, replay.cost)
    options = {**vars(load), **vars(replay), **vars(repeats)}
    with nothing_kept("--limit and --seeds"):
        found = what_if(workload, policy, change, trace, cluster=cluster, rate=rate, **options)
    show(json, found)


def workload(
    *,
    workload: Annotated[
        str,
        typer.Argument(metavar="FILE|SPEC", help="A file (see docs/workloads.md), or poisson:rate=4,requests=1000."),
    ],
    rate: RateOption = None,
    changes: WorkloadChanges,
    horizon_s: float | None = opt(None, "Leave out what would arrive at this time or later.", flag="--horizon-seconds"),
    seed: int = opt(0, "Seed of everything that is drawn."),
    lengths_from: Annotated[
        Path | None,
        typer.Option(
            callback=named_recording,
            help="A .trace folder or a shipped one's name, which a generator draws lengths from; default: pico.",
        ),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Print what a workload holds: requests, times, burstiness, lengths, sessions, shared prefixes."""
    check_json_path(json, workload, lengths_from)
    options = WorkloadOptions(rate=rate, horizon_s=horizon_s, seed=seed, **vars(changes))
    show(json, describe_workload(workload, options, lengths_from=lengths_from))


def show_under_load(
    trace: Path | None,
    policy: list[str] | None,
    options: dict[str, Any],
    *,
    rate: str | None,
    detail: bool,
    **written: Path | None,
) -> None:
    """Compare and show, `written` as of `show`; raises ValueError for bad options, Interrupted if rows are missing."""
    _check_served(options, written["json"])
    asked = None if rate is None else rates("--rate", rate)
    with finished_first(lambda it: show(found=it, tables=partial(it.tables, detail=detail), **written)) as showing:
        found = compare_under_load(trace, policy, rates=asked, **options)
        showing(found)
    if found.num_missing:
        were = "was" if found.num_missing == 1 else "were"
        raise Interrupted(f"{counted(found.num_missing, 'row')} more {were} asked for")


def show_found_rates(
    trace: Path | None,
    policy: list[str] | None,
    options: dict[str, Any],
    *,
    find_rate: str,
    rate: str | None,
    html: Path | None,
    json: Path | None,
) -> None:
    """Find and show; raises ValueError for bad options, Interrupted."""
    _check_served(options, json)
    asked = [None] if rate is None else rates("--rate", rate)
    if len(asked) > 1:
        raise ValueError(f"--rate beside --find-rate must be one, which clusters share, got {rate!r}")
    with nothing_kept("--limit and --seeds"):
        found = find_rates(trace, policy, limits=find_rate, rate=asked[0], **options)
    show(json, found, html=html)


def _check_served(options: dict[str, Any], json: Path | None) -> None:
    check_json_path(json, options["workload"], check_cluster(options["cluster"]))
