"""The options of `run`, `record` and `agree` on models and what they read."""

from pathlib import Path
from typing import Annotated, Literal

import typer

PromptsOption = Annotated[
    Path, typer.Option("--prompts", help='JSONL, a line {"id": ..., "tag": ..., "prompt": ...} a request.')
]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Only the first so many prompts.", min=1)]
MaxNewTokensOption = Annotated[int, typer.Option("--max-new-tokens", help="Longest answer.", min=1)]
PoolOption = Annotated[
    Path | None, typer.Option("--pool", help="A pool.toml or its folder; default: the shipped pool.")
]
PoolArgument = Annotated[Path | None, typer.Argument(help="A pool.toml or its folder; default: the shipped pool.")]
ThreadsOption = Annotated[int, typer.Option("--threads", help="CPU threads of torch.", min=1, max=1024)]
# Only a log can have begun in a way of its own.
LiveStartOption = Annotated[
    Literal["prefill", "draft"],
    typer.Option("--start", help="How requests begin: the target's prefill writes the first token, or a draft does."),
]
