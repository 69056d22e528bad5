"""`paceline metrics`."""

from pathlib import Path
from typing import Annotated

import typer

from ....arguments import ArgumentError
from ....runs.observed.store import is_observed
from ....studies.observed.shown_run import shown_run
from ....studies.serving.metrics import metrics as metrics_of_runs
from ...options.load import SloOption, promised
from ...output import JsonOption, check_json_path, show


def metrics(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders that simulate --out wrote; or one that observe --out did."),
    ],
    slo: SloOption = None,
    json: JsonOption = None,
) -> None:
    """Latencies, throughput, goodput, memory and acceptance of serving runs, side by side; or of one observed run."""
    check_json_path(json, *runs)
    observed = [run for run in runs if is_observed(run)]
    if not observed:
        show(json, metrics_of_runs(runs, slo=promised(slo)))
        return
    if len(runs) > 1:
        raise ValueError(f"{observed[0]}: an observed run stands alone, got {len(runs)} runs")
    if slo:
        raise ArgumentError(f"`slo` is for simulated runs, {observed[0]} was observed")
    show(json, shown_run(observed[0]))
