"""`paceline record`: token tries of real models for a list of prompts."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...counted import counted
from ...runtime.prompts import read_prompts
from ...studies.remarks import ROUNDING
from ...studies.runtime_door import runtime_module
from ...traces.meta import check_title
from ..options.closure import ClosureKind, closure_of
from ..options.models import LimitOption, MaxNewTokensOption, PoolOption, PromptsOption, ThreadsOption, load_pool
from ..options.sampling import (
    RecordedSamplingMode,
    RecordedSamplingOption,
    RecordedSeedOption,
    RecordedTemperatureOption,
    TopKOption,
    TopPOption,
    sampling_of,
)
from ..output import check_new_folder

# It takes a minute, and those who only want the contexts need not wait for it.
MEASURING = "measuring seconds (--no-costs to skip)"


def record(
    out: Annotated[Path, typer.Argument(help="The .trace folder to write.")],
    prompts: PromptsOption,
    pool: PoolOption = None,
    max_new_tokens: MaxNewTokensOption = 64,
    sampling: RecordedSamplingOption = RecordedSamplingMode.greedy,
    temperature: RecordedTemperatureOption = None,
    seed: RecordedSeedOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    closure: Annotated[
        ClosureKind, typer.Option(help="monotone (Exact chains) or full (lossy rules).")
    ] = ClosureKind.monotone,
    reach: Annotated[int, typer.Option(help="Most tokens off the trunk.", min=0)] = 16,
    run: Annotated[int, typer.Option(help="Most tokens of a member behind a larger one's.", min=0)] = 8,
    limit: LimitOption = None,
    name: Annotated[str | None, typer.Option(help="Of the trace; default: the folder's.")] = None,
    threads: ThreadsOption = 1,
    costs: Annotated[bool, typer.Option(help="Also measure seconds per forward on this machine.")] = True,
) -> None:
    """Record what every model of a pool says at every context an Exact chain can reach. A killed one continues."""
    mode = sampling_of(sampling, temperature, seed, top_p, top_k)
    requests = read_prompts(prompts)[:limit]
    check_new_folder("OUT", out, what="a recording")
    check_title(out.stem if name is None else name)
    loaded = load_pool(pool, threads=threads)
    target: Any = loaded.target.model
    tables = (
        {target.device.type: runtime_module("timing.forward_seconds").measure_costs(loaded, stage=MEASURING)}
        if costs
        else {}
    )
    trace = runtime_module("recording.recorder").record(
        loaded,
        requests,
        sampling=mode,
        closure=closure_of(closure, reach=reach, run=run),
        max_new_tokens=max_new_tokens,
        out=out,
        name=name,
        costs=tables,
    )
    contexts = sum(request.trie.num_nodes for request in trace.requests)
    typer.echo(f"{out}: {counted(len(trace.requests), 'request')}, {counted(contexts, 'context')}")
    ties = trace.meta.trunk_near_ties
    assert ties is not None
    typer.echo(f"{trace.meta.dtype}: {ties.words}{'' if trace.meta.exact else '; ' + ROUNDING}")
