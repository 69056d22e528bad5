"""`paceline run`: decode prompts with real models under a policy."""

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ...counted import counted
from ...policies.spec import make_policy
from ...reports.start_words import start_words
from ...reports.summary import summarise_run
from ...reports.tables.run import run_table
from ...runs.log import RunLog, write_run_log
from ...runtime.no_oracles import refuse_oracle_by_name
from ...runtime.prompts import read_prompts
from ...studies.remarks import batch_remarks
from ...studies.runtime_door import runtime_module
from ..errors import Interrupted
from ..options.lossless import LosslessOption, admitted
from ..options.memory import CacheMode, CacheOption, DeadShareOption, KVLimitOption, dead_share_of, limit_bytes
from ..options.models import LimitOption, MaxNewTokensOption, PoolOption, PromptsOption, ThreadsOption, load_pool
from ..options.quality import QualityOption, measured
from ..options.sampling import (
    SamplingMode,
    SamplingOption,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    sampling_of,
)
from ..options.start import LiveStart, LiveStartOption
from ..output import JsonOption, check_json_path, check_new_folder, print_table, write_json

SOME_FAILED = 1  # exit code: requests failed, the others are answered


class ForwardMode(StrEnum):
    """How models are run."""

    auto = "auto"
    fused = "fused"
    modules = "modules"


ForwardOption = Annotated[
    ForwardMode,
    typer.Option("--forward", help="Run models fused, by their own modules, or fused where that is possible."),
]


def run(
    prompts: PromptsOption,
    out: Annotated[Path | None, typer.Option(help="New folder for outputs.jsonl and the run log.")] = None,
    pool: PoolOption = None,
    policy: Annotated[list[str] | None, typer.Option(help="One, as --policy of compare; default: plain.")] = None,
    batch: Annotated[int, typer.Option(help="Requests that share each forward.", min=1)] = 1,
    max_new_tokens: MaxNewTokensOption = 64,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends an answer; may be repeated.")] = None,
    sampling: SamplingOption = SamplingMode.greedy,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    cache: CacheOption = CacheMode.slots,
    kv_limit_mib: KVLimitOption = None,
    dead_share: DeadShareOption = None,
    forward: ForwardOption = ForwardMode.auto,
    start: LiveStartOption = LiveStart.prefill,
    limit: LimitOption = None,
    lossless: LosslessOption = False,
    quality: QualityOption = True,
    threads: ThreadsOption = 1,
    debug: Annotated[bool, typer.Option(help="Check every cache at every step.")] = False,
    json: JsonOption = None,
) -> None:
    """Decode prompts with the models of a pool; the policy is the very object the simulator drives.

    Exit 1 if requests failed; the others are answered.
    """
    name = _one_policy(policy)
    refuse_oracle_by_name(name)
    mode = sampling_of(sampling, temperature, seed, top_p, top_k)
    check_stops(stop or [])
    limits = {"limit_bytes": limit_bytes(kv_limit_mib), "dead_share": dead_share_of(cache, dead_share)}
    _check_targets(out, json, prompts)
    requests = read_prompts(prompts)[:limit]
    loaded = load_pool(pool, threads=threads)
    decider = make_policy(name, runtime_module("pools.loaded_pool").loaded_pool(loaded))
    decider = admitted(decider, name, lossless=lossless)
    memory = runtime_module("world").Memory(cache=cache.value, **limits)
    shape = {"sampling": mode, "max_new_tokens": max_new_tokens, "batch": batch, "memory": memory}
    shape |= {"forward": forward.value, "stop": stop or ()}
    outputs, log = runtime_module("decode").decode(
        loaded, decider, requests, name=name, start=start.start, debug=debug, **shape
    )
    if quality:
        log = measured(log, loaded, requests, outputs, shape)
    rows = [asdict(output) for output in outputs]
    if out is not None and rows:
        write_run_log(log, out, extra={"outputs.jsonl": "".join(json_format.dumps(row) + "\n" for row in rows)})
    _show(log, rows, num_requests=len(requests), out=out, json=json)
    _end(log, rows, len(requests))


def _one_policy(names: Sequence[str] | None) -> str:
    if names is None:
        return "plain"
    if len(names) > 1:
        raise ValueError(f"--policy must be given once, got {', '.join(names)}; compare and agree take several")
    return names[0]


def check_stops(texts: Sequence[str]) -> None:
    """Refuse what no answer can hold, before models are loaded; raises ValueError."""
    for text in texts:
        if not text:
            raise ValueError("--stop must not be empty, got ''")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"--stop must be UTF-8, got {text!r}")


def _check_targets(out: Path | None, json: Path | None, prompts: Path) -> None:
    """Refuse, before models are loaded, what could not be written after the run; raises ValueError."""
    check_json_path(json, out, prompts)
    check_new_folder("--out", out)


def _show(
    log: RunLog, rows: Sequence[dict[str, Any]], *, num_requests: int, out: Path | None, json: Path | None
) -> None:
    """Answers and figures, as far as any request was answered."""
    summary = summarise_run(log) if any(not row["error"] for row in rows) else None
    if json is not None:
        figures = None if summary is None else asdict(summary)
        write_json({"meta": log.meta, "summary": figures, "outputs": list(rows)}, json)
        return
    if out is None:
        for row in rows:
            typer.echo(f"--- {row['request_id']} ({row['tag']})\n{row['text']}")
    if summary is not None:
        print_table(
            run_table(summary, batch_remarks(log.meta["batch"], num_requests, of="run"), start=start_words(log.meta))
        )


def _end(log: RunLog, rows: Sequence[dict[str, Any]], num_requests: int) -> None:
    """Say what is missing and exit with the code for it."""
    failed = [row for row in rows if row["error"]]
    for row in failed:
        typer.echo(f"paceline: failed: {row['error']}", err=True)
    if log.meta["interrupted"]:
        raise Interrupted(f"{len(rows)} of {counted(num_requests, 'request')} ended and are kept")
    if failed:
        typer.echo(f"paceline: {len(failed)} of {counted(num_requests, 'request')} failed", err=True)
        raise typer.Exit(SOME_FAILED)
