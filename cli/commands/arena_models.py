"""`paceline arena-models`: whether policies stand in the same order on a trained pool's models as simulated."""

from pathlib import Path
from typing import Annotated

import typer

from ...installing import needs_torch
from ...machine import kept_folder
from ..options.comparison import batches
from ..output import JsonOption, check_json_path, show


def arena_models(
    recording: Annotated[str, typer.Argument(help="Of the arena, of a trained pool, such as mixed.")],
    *,
    batch: Annotated[str, typer.Option(metavar="N,...", help="Requests running at a time.")] = "1,8",
    requests: Annotated[int, typer.Option(min=1, help="The first so many of the recording.")] = 48,
    runs: Annotated[int, typer.Option(min=1, help="Of the models, all cells in turn; the median counts.")] = 3,
    cost: Annotated[str, typer.Option(help="As of validate: here (the newest profile), FILE.profile, ...")] = "here",
    work: Annotated[
        Path | None, typer.Option(help="Folder of recordings and pools; default: the user's cache.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Run SpecRouter, the best static chain, two levels and the target alone in both worlds; say where they differ."""
    check_json_path(json, work)
    with needs_torch():
        from ...laboratory.arena.on_models import order_on_models
        from ...laboratory.arena.recordings.shelf import RecordingShelf
    shelf = RecordingShelf(work=work if work is not None else kept_folder() / "arena")
    show(json, order_on_models(recording, shelf, batches=batches(batch), requests=requests, runs=runs, cost=cost))
