"""`paceline run`: decode prompts with real models under a policy."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...counted import counted
from ...decoding.prefixes.size import prefix_cache_size
from ...decoding.rollouts.branching import rollouts_of
from ...foreign_text import escaped
from ...installing import needs_torch
from ...runtime.prompts import read_prompts
from ..errors import Interrupted
from ..options import models
from ..options.comparison import LosslessOption
from ..options.parsing import named_texts
from ..output import JsonOption, check_json_path, check_new_folder, show
from ..ranks import is_first

if TYPE_CHECKING:
    from ...studies.comparing.decoded import DecodedByPolicy
    from ...studies.decode import Decoded

SOME_FAILED = 1  # exit code: requests failed, the others are answered

ForwardOption = Annotated[
    Literal[
        "auto",
        "fused",
        "modules",
        "fused:plain",
        "fused:plain-rows",
        "fused:onednn",
        "fused:onednn-rows",
        "fused:onednn-packed",
        "graphs",
    ],
    typer.Option(
        help="Run models fused, by their own modules, or by what is quicker here; fused:NAME multiplies everything by "
        "one product; graphs are CUDA graphs."
    ),
]
QualityOption = Annotated[
    bool,
    typer.Option(
        "--quality/--no-quality",
        help="After the run of a lossy policy, let the target answer alone and judge the texts.",
    ),
]

RunTestsOption = Annotated[
    bool,
    typer.Option(
        "--run-tests",
        help="Where prompts have tests of code, run what the model wrote, in a sandbox; --run-tests unsandboxed: "
        "without one, with your rights.",
    ),
]
UnsandboxedArgument = Annotated[
    Literal["unsandboxed"] | None,
    typer.Argument(metavar="[unsandboxed]", help="After --run-tests.", show_default=False),
]


def run(
    unsandboxed: UnsandboxedArgument = None,
    *,
    prompts: models.PromptsOption,
    out: Annotated[Path | None, typer.Option(help="New folder for outputs.jsonl and the run log.")] = None,
    pool: models.PoolOption = None,
    device: models.DevicesOption = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="As --policy of compare; several run in turn, in one table; default: plain."),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(help="Of several policies, how many times each answers, in turn; default: 3.", min=1, max=1000),
    ] = None,
    batch: Annotated[int, typer.Option(help="Requests that share each forward.", min=1)] = 1,
    max_new_tokens: models.MaxNewTokensOption = 64,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends an answer; may be repeated.")] = None,
    sampling: models.LiveSampling,
    cache: models.CacheOption = "slots",
    kv_limit_mib: models.KVLimitOption = None,
    dead_share: models.DeadShareOption = None,
    prefix_cache: models.PrefixCacheOption = None,
    block_tokens: models.BlockTokensOption = None,
    shared_attention: models.SharedAttentionOption = "auto",
    forward: ForwardOption = "auto",
    start: models.LiveStartOption = "prefill",
    limit: models.LimitOption = None,
    rollouts: models.RolloutsOption = None,
    lossless: LosslessOption = False,
    quality: QualityOption = True,
    run_tests: RunTestsOption = False,
    threads: models.ThreadsOption = 1,
    chat: models.ChatOption = False,
    overlap: models.OverlapOption = "auto",
    debug: Annotated[bool, typer.Option(help="Say how models run; check every cache at every step.")] = False,
    json: JsonOption = None,
) -> None:
    """Decode prompts with the models of a pool; the policy is the very object the simulator drives.

    Exit 1 if requests failed; the others are answered.
    """
    names = policy or ["plain"]
    _check_several(names, out, rollouts, repeats)
    if unsandboxed and not run_tests:
        raise ValueError("unsandboxed stands after --run-tests, got it without")
    mode = sampling.chosen()
    branching = None if rollouts is None else rollouts_of(rollouts)
    check_stops(stop or [])
    prefixes = prefix_cache_size(prefix_cache, block_tokens)
    kv_bytes, most_dead = models.limit_bytes(kv_limit_mib), models.dead_share_of(cache, dead_share)
    devices = named_texts("--device", "DEVICE", device)
    check_json_path(json, out, prompts)
    check_new_folder("--out", out)
    requests = read_prompts(prompts)
    models.check_split(pool)
    with needs_torch():
        from ...runtime.memory import Memory
        from ...runtime.ranks.ranks import leave
        from ...studies.comparing.decoded import REPEATS, decode_each
        from ...studies.decode import decode
    loading: Any = {"lossless": lossless, "threads": threads, "chat": chat, "devices": devices}
    loading |= {"forward": forward, "debug": debug}
    options = dict[str, Any](
        sampling=mode,
        max_new_tokens=max_new_tokens,
        limit=limit,
        batch=batch,
        memory=Memory(
            cache=cache,
            limit_bytes=kv_bytes,
            dead_share=most_dead,
            prefixes=prefixes,
            shared_attention=shared_attention,
        ),
        start=start,
        stop=stop or (),
        quality=quality,
        run_tests=unsandboxed or run_tests,
        overlap=overlap,
        rollouts=branching,
    )
    if len(names) > 1:
        each = decode_each(pool, requests, names, options, repeats=repeats or REPEATS, **loading)
        leave()
        if is_first():
            _tell_each(each, len(names), json)
        return
    decoded = decode(pool, requests, names[0], **options, **loading)
    leave()
    if is_first():
        _tell(decoded, counted(decoded.num_requests, "request"), out, json)


def _tell(decoded: "Decoded", asked: str, out: Path | None, json: Path | None) -> None:
    """Write and print what was decoded of what was asked for; raises Exit and Interrupted where that is not all."""
    if decoded.quality_interrupted:
        typer.echo("paceline: interrupted: the answers are kept, their quality is not measured", err=True)
    if out is not None and decoded.outputs:
        decoded.write(out)
    if json is None and out is None:
        for output in decoded.outputs:
            leaves = f", leaves {output.parent} after {counted(output.depth, 'token')}" if output.parent else ""
            typer.echo(f"--- {output.request_id} ({output.tag}){leaves}\n{escaped(output.text)}")
    show(json, decoded)
    for output in decoded.failed:
        typer.echo(f"paceline: failed: {output.error}", err=True)
    if decoded.log.meta["interrupted"]:
        raise Interrupted(f"{_at(decoded)}{len(decoded.outputs)} of {asked} ended and are kept")
    if decoded.failed:
        typer.echo(f"paceline: {len(decoded.failed)} of {asked} failed", err=True)
        raise typer.Exit(SOME_FAILED)


def _tell_each(each: "DecodedByPolicy", asked: int, json: Path | None) -> None:
    """Print what several policies wrote; raises Exit and Interrupted where that is not all."""
    show(json, each)
    failed = [output for run in each.runs for output in run.failed]
    for output in failed:
        typer.echo(f"paceline: failed: {output.error}", err=True)
    last = each.runs[-1]
    if last.log.meta["interrupted"] or last.quality_interrupted:
        raise Interrupted(f"{_at(last)}{len(each.runs)} of {asked} policies began, the last one did not end")
    if each.is_cut_short:
        rounds = counted(each.num_rounds, "whole round")
        raise Interrupted(f"every policy answered, and speeds are of {rounds} instead of {each.asked_rounds}")
    if failed:
        typer.echo(f"paceline: {counted(len(failed), 'request')} failed", err=True)
        raise typer.Exit(SOME_FAILED)


def _at(run: "Decoded") -> str:
    """Where in a policy's file an interrupt came, as the beginning of a sentence; empty if in none."""
    place = run.log.meta.get("interrupted_at")
    return "" if place is None else f"in {run.log.meta['policy']} at {place}; "


def _check_several(names: Sequence[str], out: Path | None, rollouts: str | None, repeats: int | None) -> None:
    """Raises ValueError for options that go with one policy alone, or with several only."""
    if len(names) == 1 and repeats is not None:
        raise ValueError(f"--repeats goes with several --policy, got {names[0]}")
    if len(names) > 1 and (out is not None or rollouts is not None):
        option = "--out" if out is not None else "--rollouts"
        raise ValueError(f"{option} goes with one --policy, got {', '.join(names)}; --json has the answers of each")


def check_stops(texts: Sequence[str]) -> None:
    """Refuse what no answer can hold, before models are loaded; raises ValueError."""
    for text in texts:
        if not text:
            raise ValueError("--stop must not be empty, got ''")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"--stop must be UTF-8, got {text!r}")
