"""`paceline metrics`."""

from pathlib import Path
from typing import Annotated

import typer

from ....studies.serving.metrics import metrics as metrics_of_runs
from ...options.load import SloOption, promised
from ...output import JsonOption, check_json_path, show


def metrics(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that simulate --out wrote.")],
    slo: SloOption = None,
    json: JsonOption = None,
) -> None:
    """Latencies, throughput, goodput, memory and acceptance of serving runs, side by side."""
    check_json_path(json, *runs)
    show(json, metrics_of_runs(runs, slo=promised(slo)))
