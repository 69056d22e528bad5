"""`paceline simulate`: a workload served under a policy."""

from pathlib import Path
from typing import Annotated

import typer

from ....counted import counted
from ....studies.serving.broken_workload import BrokenWorkloadError
from ....studies.serving.simulate import simulate as serve_workload
from ...errors import Interrupted
from ...options.comparison import ReplayAsked, TraceOption
from ...options.load import CLUSTER, WORKLOAD, LoadAsked
from ...output import JsonOption, check_json_path, check_new_folder, show


def simulate(
    *,
    workload: Annotated[str, typer.Option(metavar="FILE|SPEC", help=WORKLOAD)],
    cluster: Annotated[str, typer.Option(metavar="FILE|DEVICE", help=CLUSTER)],
    policy: Annotated[
        list[str] | None, typer.Option(help="One, as --policy of compare, for replicas that have none of their own.")
    ] = None,
    trace: TraceOption = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the run, which paceline metrics reads.")] = None,
    rate: Annotated[float | None, typer.Option(help="Scale times of arrival to this mean rate per second.")] = None,
    load: LoadAsked,
    replay: ReplayAsked,
    json: JsonOption = None,
) -> None:
    """Serve a workload under one policy: latencies, throughput, goodput, memory, acceptance.

    Ctrl-C stops the run and keeps what was simulated, and so does a row of the workload that is wrong.
    """
    name = _at_most_one(policy)
    check_json_path(json, Path(workload), Path(cluster), out, *([] if replay.cost is None else [Path(replay.cost)]))
    check_new_folder("--out", out)
    try:
        found = serve_workload(
            workload, name, trace, cluster=cluster, rate=rate, out=out, **load.options(), **replay.setting()
        )
    except BrokenWorkloadError as broken:
        if broken.run is not None:
            show(json, broken.run)
        raise broken.error from None
    show(json, found)
    if found.interrupted:
        metrics = found.report.rows[0].runs[0].metrics
        kept = "shown" if out is None else "kept"
        raise Interrupted(f"{metrics.finished:,} of {counted(metrics.requests, 'request')} finished and are {kept}")


def _at_most_one(names: list[str] | None) -> str | None:
    if names is not None and len(names) > 1:
        raise ValueError(f"--policy must be given once, got {', '.join(names)}; compare takes several")
    return None if names is None else names[0]
