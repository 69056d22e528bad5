"""`paceline plugin new`: a package of one's own policy, router, cost, workload or importer."""

from pathlib import Path
from typing import Annotated

import typer

from ..base.options import opt
from ..studies.plugins import KINDS, new_plugin
from .output import JsonOption, check_json_path, show


def new(
    kind: Annotated[str, typer.Argument(metavar="|".join(KINDS), help="What it is to be.")],
    name: Annotated[str, typer.Argument(help="As it is to be called, as in my-policy.")],
    out: Path | None = opt(None, "New folder; default: paceline-NAME."),
    json: JsonOption = None,
) -> None:
    """Write a package that registers something of your own: code to change, an entry point, a test, a README."""
    check_json_path(json, out)
    show(json, new_plugin(kind, name, out))
