"""`paceline metrics`."""

from pathlib import Path
from typing import Annotated

import typer

from ....studies.serving.metrics import metrics as metrics_of_runs
from ...options.parsing import named_numbers
from ...output import JsonOption, check_json_path, show


def metrics(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that simulate --out wrote.")],
    slo: Annotated[
        str | None,
        typer.Option(help="Longest times in seconds for goodput: ttft=2,tpot=0.05; also e2e and queue."),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Latencies, throughput, goodput, memory and acceptance of serving runs, side by side."""
    check_json_path(json, *runs)
    promised = {} if slo is None else named_numbers("--slo", "SECONDS", slo.split(","))
    show(json, metrics_of_runs(runs, slo=promised))
