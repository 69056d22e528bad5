"""`paceline workload`: what a workload holds."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ....studies.serving.describe_workload import describe_workload
from ....traces.workloads import WorkloadOptions
from ...options.recordings import named_recording
from ...options.workload import WorkloadAsked
from ...output import JsonOption, check_json_path, show


def workload(
    *,
    workload: Annotated[
        str,
        typer.Argument(metavar="FILE|SPEC", help="A file (see docs/workloads.md), or poisson:rate=4,requests=1000."),
    ],
    rate: Annotated[float | None, typer.Option(help="Scale times of arrival to this mean rate per second.")] = None,
    asked: WorkloadAsked,
    lengths_from: Annotated[
        Path | None,
        typer.Option(
            callback=named_recording,
            help="A .trace folder or a shipped one's name, which a generator draws lengths from; default: pico.",
        ),
    ] = None,
    json: JsonOption = None,
) -> None:
    """What a workload holds: requests, times, burstiness, lengths, sessions, shared prefixes."""
    check_json_path(json, Path(workload), lengths_from)
    options = WorkloadOptions(rate=rate, **asdict(asked))
    show(json, describe_workload(workload, options, lengths_from=lengths_from))
