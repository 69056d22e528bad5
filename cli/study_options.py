"""Options of commands that run policies on a recording."""

from pathlib import Path
from typing import Annotated

import typer

from ..sim.simulate import MOST_BATCH
from .options import named_recording

TraceOption = Annotated[
    Path | None, typer.Option(callback=named_recording, help="A .trace folder, or a shipped one's name; default: pico.")
]
PoliciesOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME, NAME,key=value,..., a chain (draft:4/target), file.py:Class or package.module:Class."),
]


def batches(text: str) -> tuple[int, ...]:
    """The comma-separated batches of `--batch`; raises ValueError with the part that is none."""
    parts = text.split(",")
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) <= 7 and 1 <= int(part) <= MOST_BATCH):
            raise ValueError(f"--batch must be a whole number from 1 to {MOST_BATCH:,}, got {part!r}")
    return tuple(int(part) for part in parts)
