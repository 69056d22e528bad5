"""The options of `run`, `record` and `agree` on models and what they read, and the pool asked for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...progress import Progress
from ...studies.runtime_door import runtime_module
from ...studies.shipped import shipped

if TYPE_CHECKING:
    from ...runtime.pools.pool import ModelPool

PROMPTS_FILE = "prompts.jsonl"  # a pool's own, beside its file

PromptsOption = Annotated[
    Path, typer.Option("--prompts", help='JSONL, a line {"id": ..., "tag": ..., "prompt": ...} a request.')
]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Only the first so many prompts.", min=1)]
MaxNewTokensOption = Annotated[int, typer.Option("--max-new-tokens", help="Longest answer.", min=1)]
PoolOption = Annotated[
    Path | None, typer.Option("--pool", help="A pool.toml or its folder; default: the shipped pool.")
]
ThreadsOption = Annotated[int, typer.Option("--threads", help="CPU threads of torch.", min=1, max=1024)]


def load_pool(pool: Path | None, *, threads: int, show_progress: bool = True) -> "ModelPool":
    """The models of --pool, the shipped ones if None; raises as `ModelPool.load` and `runtime_module`."""
    path = shipped("pools", "pico") if pool is None else pool
    with Progress(f"loading {path}", shown=show_progress):
        loaded: ModelPool = runtime_module("pools.pool").ModelPool.load(path, threads=threads)
    return loaded
