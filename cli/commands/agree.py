"""`paceline agree`: the same policies in both worlds, compared step by step."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ...installing import needs_torch
from ...runtime.prompts import read_prompts
from ..options import models
from ..options.comparison import LosslessOption
from ..options.recordings import named_recording
from ..output import JsonOption, check_json_path, show

DIFFERENT = 1  # exit code: the worlds differ

GivenTraceOption = Annotated[
    Path | None,
    typer.Option(
        callback=named_recording, help="A .trace folder of these prompts and this pool; default: recorded now."
    ),
]
GivenClosureOption = Annotated[
    Literal["monotone", "full"] | None,
    typer.Option(help="Of the recording: monotone (the default) or full (holds more of what lossy policies do)."),
]
GivenReachOption = Annotated[
    int | None,
    typer.Option(
        help="Most tokens off the trunk that are recorded; a policy needs as many as it ever has pending, a chain "
        "the sum of its windows. Default: the most that any policy says it needs, at least 16.",
        min=0,
    ),
]
GivenRunOption = Annotated[
    int | None, typer.Option(help="Most of them by a member after a larger one's; default: as --reach.", min=0)
]


def agree(
    *,
    prompts: models.PromptsOption,
    policy: Annotated[
        list[str] | None, typer.Option(help="As --policy of compare, once for each; default: a representative set.")
    ] = None,
    pool: models.PoolOption = None,
    trace: GivenTraceOption = None,
    max_new_tokens: models.MaxNewTokensOption = 64,
    sampling: models.RecordedSampling,
    batch: Annotated[int, typer.Option(help="Requests running at a time.", min=1)] = 1,
    cache: models.CacheOption = "slots",
    start: models.LiveStartOption = "prefill",
    closure: GivenClosureOption = None,
    reach: GivenReachOption = None,
    run: GivenRunOption = None,
    limit: models.LimitOption = None,
    lossless: LosslessOption = False,
    prefix_cache: models.PrefixCacheOption = None,
    block_tokens: models.BlockTokensOption = None,
    threads: models.ThreadsOption = 1,
    chat: models.ChatOption = False,
    overlap: models.OverlapOption = "auto",
    json: JsonOption = None,
) -> None:
    """Run policies in both worlds, on a recording and on the models, and compare every step. Exit 1 if they differ."""
    mode = sampling.chosen()
    check_json_path(json, prompts)
    requests = read_prompts(prompts)
    with needs_torch():
        from ...studies.agree import agree as agreements_of
    found = agreements_of(
        pool,
        requests,
        policy,
        recording=trace,
        sampling=mode,
        max_new_tokens=max_new_tokens,
        limit=limit,
        batch=batch,
        cache=cache,
        start=start,
        closure=closure,
        reach=reach,
        run=run,
        lossless=lossless,
        threads=threads,
        chat=chat,
        overlap=overlap,
        prefix_cache=prefix_cache,
        block_tokens=block_tokens,
    )
    show(json, found)
    if not found.agree:
        raise typer.Exit(DIFFERENT)
