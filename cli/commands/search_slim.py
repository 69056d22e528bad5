"""`paceline pool search-slim`: find which layers of the target to leave out, and put the result into the pool file."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...counted import counted
from ...reports.tables.grid import Column, Grid
from ...runtime.pools import PoolFile, read_pool_file
from ...runtime.prompts import Prompt, read_prompts
from ...runtime.slim import VERIFIED_TOKENS, Frontier, NewSlim, SlimFound, add_slims, check_names, slim_name
from ...studies.runtime_door import runtime_module
from ...studies.shipped import shipped
from ...whole_files import place_of, write_whole
from ..options.models import PROMPTS_FILE, MaxNewTokensOption, ThreadsOption, load_pool
from ..output import JsonOption, check_json_path, print_table, write_json

if TYPE_CHECKING:
    from ...runtime.pools.pool import ModelPool
    from ...runtime.slim.search import Budget

_NUMBERS = ("share", "TVD", "unequal argmax", "ms", "of target")
_HEADINGS = ("member", "layers left out", *_NUMBERS, "found by", "dominated")


def search_slim(
    pool: Annotated[Path | None, typer.Argument(help="A pool.toml or its folder; default: the shipped pool.")] = None,
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
    file, content = read_pool_file(shipped("pools", "pico") if pool is None else pool)
    target_file = _writable(file if out is None else out, file, shipped_pool=pool is None)
    check_json_path(json, file, target_file, prompts)
    shares = share or [0.45]
    check_names(file, content, [slim_name(each) for each in shares], replace=replace)
    requests = _prompts(file, prompts)[:limit]
    budget: Budget = runtime_module("slim.search").Budget(
        trials=trials, random_trials=max(1, trials // 3) if random_trials is None else random_trials, seed=seed
    )
    loaded = load_pool(file, threads=threads)
    target = content.members[-1].name
    frontier: Frontier = runtime_module("slim.find").find_slims(
        loaded,
        requests,
        shares,
        budget,
        max_new_tokens=max_new_tokens,
        baselines={entry.name: entry.skip_layers for entry in content.members if entry.submodel_of == target},
    )
    write_whole(target_file, _edited(file, content, loaded, frontier.found, folder=target_file.parent))
    if json is not None:
        asked = {"prompts": len(requests), "max_new_tokens": max_new_tokens, "threads": threads, **asdict(budget)}
        write_json({"pool": loaded.name, "out": str(target_file), **asked, **_figures(frontier, loaded)}, json)
        return
    print_table(_table(frontier, loaded, len(requests)))
    typer.echo(f"{target_file}: {', '.join(found.name for found in frontier.found)} written")


def _prompts(file: Path, given: Path | None) -> tuple[Prompt, ...]:
    """Those asked for, or the pool's own."""
    path = file.parent / PROMPTS_FILE if given is None else given
    if given is None and not path.is_file():
        raise ValueError(f"--prompts must be given for a pool without {PROMPTS_FILE} beside its file, got none")
    return read_prompts(path)


def _writable(out: Path, file: Path, *, shipped_pool: bool) -> Path:
    """Refuse, before a long search, a file that could not be written behind it."""
    if out.is_dir():
        raise ValueError(f"--out must name a file, got the folder {out}")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: no folder {out.parent}")
    own = out.exists() and out.samefile(file)
    if own and shipped_pool:
        raise ValueError(f"--out must name another file than the shipped pool's, got {out}")
    if out.exists() and not own:
        raise ValueError(f"--out {out}: exists already, and is not the pool file")
    if not os.access(place_of(out).parent, os.W_OK):
        raise ValueError(f"--out {out}: cannot be written")
    return out


def _edited(file: Path, content: PoolFile, pool: "ModelPool", found: Sequence[SlimFound], *, folder: Path) -> str:
    slims = [
        NewSlim(name=each.name, skip_layers=each.skip_layers, num_parameters=each.num_parameters) for each in found
    ]
    sizes = {member.name: member.num_parameters for member in pool.members}
    return add_slims(file, content, slims, sizes, folder=folder)


def _figures(frontier: Frontier, pool: "ModelPool") -> dict[str, object]:
    """What was measured, for programs."""
    figures = asdict(frontier)
    target = {"name": pool.target.name, "num_layers": frontier.num_layers, "seconds": figures.pop("target_s")}
    hardware = runtime_module("timing.forward_seconds").hardware(
        None if pool.target.model is None else pool.target.model.device
    )
    return {**figures, "target": target, "verified_tokens": VERIFIED_TOKENS, "hardware": hardware}


def _table(frontier: Frontier, pool: "ModelPool", num_prompts: int) -> Grid:
    """Rows from the fastest to the target."""
    title = (
        f"pool {pool.name}: {counted(frontier.num_trials, 'mask')} tried on {counted(frontier.num_tokens, 'token')} of "
        f"{counted(num_prompts, 'prompt')}; ms of a forward of {VERIFIED_TOKENS} tokens"
    )
    rows = [
        _cells(row) for row in sorted((*frontier.found, *frontier.baselines), key=lambda row: (row.seconds, row.tvd))
    ]
    ends = ("0%", "0.0000", "0.0%", f"{1000 * frontier.target_s:.3f}", "100%")
    rows.append((pool.target.name, "none", *ends, "", ""))
    columns = tuple(Column(heading=heading, number=heading in _NUMBERS) for heading in _HEADINGS)
    return Grid(title=title, columns=columns, rows=tuple(rows))


def _cells(row: SlimFound) -> tuple[str, ...]:
    return (
        row.name,
        " ".join(map(str, row.skip_layers)),
        f"{row.share:.0%}",
        f"{row.tvd:.4f}",
        f"{row.disagreement:.1%}",
        f"{1000 * row.seconds:.3f}",
        f"{row.seconds_share:.0%}",
        row.how,
        "yes" if row.dominated else "no",
    )
