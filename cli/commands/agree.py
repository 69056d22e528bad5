"""`paceline agree`: the same policies in both worlds, compared step by step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ...counted import counted
from ...installing import needs_torch
from ...reports.tables.agreement import agreement_table, record_exit_line, total_line
from ...reports.tables.start_words import start_words
from ...runtime.prompts import read_prompts
from ...traces.meta import Sampling
from ..options.comparison import LosslessOption
from ..options.memory import CacheOption
from ..options.models import LimitOption, MaxNewTokensOption, PoolOption, PromptsOption, ThreadsOption
from ..options.sampling import (
    RecordedSamplingMode,
    RecordedSamplingOption,
    RecordedSeedOption,
    RecordedTemperatureOption,
    TopKOption,
    TopPOption,
    sampling_of,
)
from ..options.start import LiveStart, LiveStartOption
from ..output import JsonOption, check_json_path, print_table, say, write_json

DIFFERENT = 1  # exit code: the worlds differ

GivenTraceOption = Annotated[
    Path | None,
    typer.Option("--trace", help="A .trace folder of these prompts and this pool; default: recorded now."),
]
GivenClosureOption = Annotated[
    Literal["monotone", "full"] | None,
    typer.Option(
        "--closure", help="Of the recording: monotone (the default) or full (holds more of what lossy policies do)."
    ),
]
GivenReachOption = Annotated[
    int | None,
    typer.Option(
        "--reach",
        help="Most tokens off the trunk that are recorded; a policy needs as many as it ever has pending, a chain "
        "the sum of its windows. Default: the most that any policy says it needs, at least 16.",
        min=0,
    ),
]
GivenRunOption = Annotated[
    int | None,
    typer.Option("--run", help="Most of them by a member after a larger one's; default: as --reach.", min=0),
]


def agree(
    prompts: PromptsOption,
    policy: Annotated[
        list[str] | None, typer.Option(help="As --policy of compare, once for each; default: a representative set.")
    ] = None,
    pool: PoolOption = None,
    trace: GivenTraceOption = None,
    max_new_tokens: MaxNewTokensOption = 64,
    sampling: RecordedSamplingOption = RecordedSamplingMode.greedy,
    temperature: RecordedTemperatureOption = None,
    seed: RecordedSeedOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    batch: Annotated[int, typer.Option(help="Requests running at a time.", min=1)] = 1,
    cache: CacheOption = "slots",
    start: LiveStartOption = LiveStart.prefill,
    closure: GivenClosureOption = None,
    reach: GivenReachOption = None,
    run: GivenRunOption = None,
    limit: LimitOption = None,
    lossless: LosslessOption = False,
    threads: ThreadsOption = 1,
    json: JsonOption = None,
) -> None:
    """Run policies in both worlds, on a recording and on the models, and compare every step. Exit 1 if they differ."""
    mode = sampling_of(sampling, temperature, seed, top_p, top_k)
    check_json_path(json, prompts)
    requests = read_prompts(prompts)[:limit]
    with needs_torch():
        from ...studies.agree import agree as agreements_of
    found = agreements_of(
        pool,
        requests,
        policy,
        recording=trace,
        sampling=mode,
        max_new_tokens=max_new_tokens,
        batch=batch,
        cache=cache,
        start=start.start,
        closure=closure,
        reach=reach,
        run=run,
        lossless=lossless,
        threads=threads,
    )
    if json is None:
        _print_head(found.meta, mode)
        print_table(agreement_table(found.policies))
        for agreement in found.policies:
            if agreement.left is not None:
                say(record_exit_line(agreement, agreement.left))
        for difference, near_ties in found.differences():
            typer.echo(difference)
            say(near_ties)
        if not found.agree:
            ties = counted(found.meta["near_ties"], "near tie")
            say(f"the recording holds {ties}: choices between two tokens that rounding may flip")
        say(total_line(found.policies))
    else:
        write_json(found.to_json(), json)
    if not found.agree:
        raise typer.Exit(DIFFERENT)


def _print_head(meta: Mapping[str, Any], sampling: Sampling) -> None:
    closure = meta["closure"]
    say(
        f"pool {meta['pool']} and recording {meta['trace']} ({sampling.words}; {closure['kind']}, reach "
        f"{closure['reach']}, run {closure['run']}), {counted(meta['requests'], 'request')}, at most "
        f"{counted(meta['max_new_tokens'], 'token')} each, batch {meta['batch']}, cache {meta['cache']}"
        f"{start_words(meta)}"
    )
