"""`paceline run`: decode prompts with real models under a policy."""

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..policies.registry import make_policy
from ..reports.run_table import run_table
from ..reports.summary import summarise_run
from ..runtime.prompts import read_prompts
from ..traces.run_log import write_run_log
from .output import JsonOption, check_json_path, print_table, write_json
from .runtime_door import runtime_module
from .sampling import SamplingMode, sampling_of
from .shipped import shipped


def run(
    prompts: Annotated[Path, typer.Option(help='JSONL, a line {"id": ..., "tag": ..., "prompt": ...} a request.')],
    out: Annotated[Path | None, typer.Option(help="New folder for outputs.jsonl and the run log.")] = None,
    pool: Annotated[Path | None, typer.Option(help="A pool.toml or its folder; default: the shipped pool.")] = None,
    policy: Annotated[str, typer.Option(help="As --policy of compare.")] = "plain",
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 64,
    sampling: Annotated[SamplingMode, typer.Option(help="How tokens are chosen.")] = SamplingMode.greedy,
    temperature: Annotated[float | None, typer.Option(help="Of coupled sampling, >= 0.001.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of coupled sampling.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many prompts.", min=1)] = None,
    threads: Annotated[int, typer.Option(help="CPU threads of torch.", min=1, max=1024)] = 1,
    json: JsonOption = None,
) -> None:
    """Decode prompts one at a time with the models of a pool; the policy is the very object the simulator drives."""
    mode = sampling_of(sampling, temperature, seed)
    check_json_path(json)
    requests = read_prompts(prompts)[:limit]
    if out is not None and out.exists():
        raise ValueError(f"{out}: exists already; a run is never overwritten")
    loaded = runtime_module("pool").ModelPool.load(shipped("pools", "pico") if pool is None else pool, threads=threads)
    decider = make_policy(policy, runtime_module("loaded_pool").loaded_pool(loaded))
    outputs, log = runtime_module("decode").decode(
        loaded, decider, requests, sampling=mode, max_new_tokens=max_new_tokens, name=policy
    )
    rows = [asdict(output) for output in outputs]
    if out is not None:
        write_run_log(log, out, extra={"outputs.jsonl": "".join(json_format.dumps(row) + "\n" for row in rows)})
    summary = summarise_run(log)
    if json is not None:
        write_json({"meta": log.meta, "summary": asdict(summary), "outputs": rows}, json)
        return
    if out is None:
        for row in rows:
            typer.echo(f"--- {row['request_id']} ({row['tag']})\n{row['text']}")
    print_table(run_table(summary))
