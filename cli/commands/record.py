"""`paceline record`: token tries of real models for a list of prompts."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from ...counted import counted
from ...installing import needs_torch
from ...runtime.prompts import read_prompts
from ...traces.tries.meta import ROUNDING
from ...traces.tries.recording import TrieRecording
from ..options import models
from ..output import check_new_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """Which contexts are recorded, as it is typed: each field is an option."""

    closure: Annotated[
        Literal["monotone", "full"], typer.Option(help="monotone (Exact chains) or full (lossy rules).")
    ] = "monotone"
    reach: Annotated[int, typer.Option(help="Most tokens off the trunk.", min=0)] = 16
    run: Annotated[int, typer.Option(help="Most tokens of a member after a larger one's.", min=0)] = 8
    trees: Annotated[
        list[str] | None, typer.Option(help="Token trees to keep too: draft:4x2x1, draft:beam=4,depth=5; repeatable.")
    ] = None


def record(
    *,
    out: Annotated[Path, typer.Argument(help="The .trace folder to write.")],
    prompts: models.PromptsOption,
    pool: models.PoolOption = None,
    max_new_tokens: models.MaxNewTokensOption = 64,
    sampling: models.RecordedSampling,
    kept: _Kept,
    limit: models.LimitOption = None,
    name: Annotated[str | None, typer.Option(help="Of the trace; default: the folder's.")] = None,
    threads: models.ThreadsOption = 1,
    chat: models.ChatOption = False,
    costs: Annotated[bool, typer.Option(help="Also measure seconds per forward on this machine.")] = True,
    profile: Annotated[
        str, typer.Option(help="Take them from a profile: here (the newest of this machine), FILE.profile or none.")
    ] = "none",
    debug: models.DebugOption = False,
) -> None:
    """Record what every model of a pool says at every context an Exact chain can reach. A killed one continues."""
    mode = sampling.chosen()
    requests = read_prompts(prompts)[:limit]
    check_new_folder("OUT", out, what="a recording")
    with needs_torch():
        from ...studies.record import record as record_prompts
    trace = record_prompts(
        pool,
        requests,
        out,
        sampling=mode,
        max_new_tokens=max_new_tokens,
        **{**asdict(kept), "trees": kept.trees or ()},
        name=name,
        costs=costs,
        profile=profile,
        threads=threads,
        chat=chat,
        debug=debug,
    )
    _say_what_it_holds(trace, out)


def _say_what_it_holds(trace: TrieRecording, out: Path) -> None:
    contexts = sum(request.trie.num_nodes for request in trace.requests)
    typer.echo(f"{out}: {counted(len(trace.requests), 'request')}, {counted(contexts, 'context')}")
    ties = trace.meta.trunk_near_ties
    assert ties is not None
    typer.echo(f"{trace.meta.dtype}: {ties.words}{'' if trace.meta.exact else '; ' + ROUNDING}")
