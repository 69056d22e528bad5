"""`paceline pool search-slim`: find which layers of the target to leave out, and put the result into the pool file."""

from pathlib import Path
from typing import Annotated

import typer

from ...installing import needs_torch
from ...runtime.pools.pool_file import read_pool_file
from ...runtime.prompts import PROMPTS_FILE
from ...shipped import shipped
from ..options.models import MaxNewTokensOption, PoolArgument, ThreadsOption
from ..output import JsonOption, check_json_path, print_result, write_json


def search_slim(
    pool: PoolArgument = None,
    prompts: Annotated[
        Path | None, typer.Option(help=f"JSONL as for `run`; default: {PROMPTS_FILE} beside the pool file.")
    ] = None,
    share: Annotated[
        list[float] | None, typer.Option(help="Of the target's layers to leave out; may be repeated. Default: 0.45.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Masks to try for each share.")] = 60,
    random_trials: Annotated[
        int | None, typer.Option(help="Of these drawn evenly, before the search learns; default: a third.")
    ] = None,
    max_new_tokens: MaxNewTokensOption = 64,
    limit: Annotated[int, typer.Option(help="Only the first so many prompts.", min=1)] = 48,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    threads: ThreadsOption = 1,
    out: Annotated[Path | None, typer.Option(help="Pool file to write; default: the one that was read.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace slim verifiers of the same names.")] = False,
    json: JsonOption = None,
) -> None:
    """Search slim verifiers: masks of layers that keep the target's distributions, for each share left out.

    Random search, then Bayesian; all masks where they are no more than --trials. Needs the extra `search`.
    """
    file, _ = read_pool_file(shipped("pools", "pico") if pool is None else pool)
    check_json_path(json, file, out, prompts)
    with needs_torch():
        from ...studies.find_slim import find_slim
    found = find_slim(
        pool,
        prompts,
        shares=share or [0.45],
        trials=trials,
        random_trials=random_trials,
        max_new_tokens=max_new_tokens,
        limit=limit,
        seed=seed,
        threads=threads,
        out=out,
        replace=replace,
    )
    if json is not None:
        write_json(found.to_json(), json)
        return
    print_result(found.tables(), found.lines())
