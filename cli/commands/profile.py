"""`paceline profile`: what this machine takes for the operations of a pool."""

from pathlib import Path
from typing import Annotated

import typer

from ...installing import needs_torch
from ..options import models
from ..output import JsonOption, check_file_path, check_json_path, show


def profile(
    *,
    pool: models.PoolOption = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL; some are decoded to time operations. Default: those beside the pool.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The .profile file to write; default: kept where --cost here finds it.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Also time how long this policy takes to decide; repeatable.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Times each shape of a forward is timed.", min=3)] = 9,
    sampling: models.LiveSampling,
    most_drift: Annotated[
        float, typer.Option(help="Largest change of seconds while they are measured, as a share; beyond it, refuse.")
    ] = 0.1,
    threads: models.ThreadsOption = 1,
    debug: models.DebugOption = False,
    json: JsonOption = None,
) -> None:
    """Measure what this machine takes for a pool's operations, for --cost here: forwards by shape, and all besides."""
    mode = sampling.chosen()
    check_json_path(json, out, prompts)
    if out is not None:
        check_file_path("--out", out)
    with needs_torch():
        from ...studies.seconds.profile import profile as profile_pool
    made = profile_pool(
        pool,
        prompts,
        out=out,
        sampling=mode,
        repeats=repeats,
        policies=policy or (),
        most_drift=most_drift,
        threads=threads,
        debug=debug,
    )
    show(json, made)
