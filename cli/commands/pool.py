"""`paceline pool show | check | train | search-slim`."""

from pathlib import Path
from typing import Annotated

import typer

from ...counted import counted
from ...installing import needs_torch
from ...reports.tables.grid import table
from ..options.models import PoolArgument
from ..output import JsonOption, print_table, write_json
from .pool_check import check
from .search_slim import search_slim

_FIELDS = {
    "name": "name",
    "kind": "kind",
    "num_parameters": "parameters",
    "num_layers": "layers",
    "hidden_size": "hidden size",
    "kv_bytes_per_token": "KV bytes /token",
    "dtype": "dtype",
}


def pool_app() -> typer.Typer:
    """The `pool` group."""
    app = typer.Typer(help="Pools of real models.", no_args_is_help=True)
    app.command("show")(show)
    app.command("check")(check)
    app.command("train")(train)
    app.command("search-slim")(search_slim)
    return app


def show(
    pool: PoolArgument = None,
    json: JsonOption = None,
) -> None:
    """Load a pool and list its members, smallest first."""
    with needs_torch():
        from ...studies.pool import load_pool
    loaded = load_pool(pool)
    rows = [{field: getattr(member, field) for field in _FIELDS} for member in loaded.members]
    if json is not None:
        write_json({"pool": loaded.name, "context_tokens": loaded.context_tokens, "members": rows}, json)
        return
    cells = [
        {_FIELDS[field]: f"{value:,}" if isinstance(value, int) else str(value) for field, value in row.items()}
        for row in rows
    ]
    title = f"pool {loaded.name}, context {counted(loaded.context_tokens, 'token')}"
    print_table(table(cells, texts=("kind", "dtype"), title=title))


def train(
    out: Annotated[Path, typer.Argument(help="Folder of the pool to write.")],
    work: Annotated[Path | None, typer.Option(help="Folder for checkpoints; OUT.work where not given.")] = None,
    threads: Annotated[
        int, typer.Option(min=1, max=1024, help="CPU threads; another number gives other roundings.")
    ] = 1,
    tiny: Annotated[bool, typer.Option("--tiny", help="Run every stage in seconds, to try it out.")] = False,
) -> None:
    """Train the pool of small models on this machine; a second call continues one that was cut short."""
    with needs_torch():
        from ...laboratory.training.pipeline import train_pool
        from ...laboratory.training.recipe import pico_recipe, tiny_recipe
        from ...runtime.threads import use_threads
    use_threads(threads)
    recipe = tiny_recipe() if tiny else pico_recipe()
    options = "".join([f" --threads {threads}" if threads > 1 else "", " --tiny" if tiny else ""])
    command = f"paceline pool train {out.name}{options}"
    train_pool(recipe, out, work or out.with_name(f"{out.name}.work"), command=command)
    typer.echo(f"{out}: trained; see {out / 'CARD.md'}")
