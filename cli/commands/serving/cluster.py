"""`paceline cluster`: what a cluster file comes to."""

from pathlib import Path
from typing import Annotated

import typer

from ....studies.serving.cluster import cluster as show_cluster
from ...options.comparison import ModelsOption, TraceOption
from ...output import JsonOption, check_json_path, show


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
    check_json_path(json, Path(file))
    show(json, show_cluster(file, trace, models=models))
