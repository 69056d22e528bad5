"""`paceline trace list | inspect | check | make`."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..base.errors import counted
from ..base.files import pool_path, recording_path, shipped, shipped_names
from ..base.options import opt
from ..reports.recordings import rounds_tables, trace_tables
from ..reports.tables import Grid, table
from ..runtime.pools.pool_file import tokenizer_sha256
from ..traces.contexts.on_disk import write_trace
from ..traces.errors import TraceFormatError
from ..traces.opening import by_form, open_recording
from ..traces.synthetic import SyntheticSpec, make_trace
from .options import named_recording
from .output import JsonOption, check_json_path, check_new_folder, print_table, show_table, write_json

TraceArgument = Annotated[
    Path, typer.Argument(callback=named_recording, help="A .trace folder, or a shipped one's name.")
]


def list_recordings(
    folder: Annotated[
        Path, typer.Argument(help="Folder whose recordings are listed after those that come with paceline.")
    ] = Path(),
    json: JsonOption = None,
) -> None:
    """List the recordings that come with paceline, by the names that `--trace` takes, and those in a folder."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: must be a folder")
    rows = [_listed(name, shipped("recordings", f"{name}.trace")) for name in shipped_names("recordings", ".trace")]
    rows += [_listed(str(path), path) for path in sorted(folder.glob("*.trace")) if path.is_dir()]
    show_table(json, {"recordings": rows}, table(rows, texts=("holds", "models")))


def _listed(name: str, path: Path) -> dict[str, str]:
    """A row of the list; for a folder that is no valid recording, the reason."""
    try:
        about = open_recording(path).about
    except TraceFormatError as error:
        return {"trace": name, "holds": f"cannot be read: {error}", "models": ""}
    return {"trace": name, "holds": about.holds, "models": ", ".join((*about.lookups, *about.models))}


def inspect(
    trace: Annotated[
        Path | None,
        typer.Argument(callback=named_recording, help="A .trace folder, or a shipped one's name; default: pico."),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Show what a recording holds, by tag: agreement with the target, or rounds of each drafter if imported."""
    trace = recording_path(trace)
    check_json_path(json)
    recording = open_recording(trace)
    if json is not None:
        write_json(recording.summary(trace).to_json(), json)
        return
    tables: Iterable[Grid] = by_form(
        recording,
        tries=lambda tries: trace_tables(tries.summary(trace)),
        rounds=lambda rounds: rounds_tables(rounds.summary(trace)),
    )
    for one in tables:
        print_table(one)


def check(
    trace: TraceArgument,
    pool: Path | None = opt(None, "A pool whose tokenizer the trace must have."),
) -> None:
    """Validate a recording in full; exit 2 with the first broken rule."""
    recording = open_recording(trace)
    wanted, found = None if pool is None else tokenizer_sha256(pool_path(pool)), recording.about.tokenizer_sha256
    if wanted is not None and found != wanted:
        held = "none, as it was imported" if found is None else found[:12]
        raise TraceFormatError(trace, "tokenizer_sha256", f"must be that of {pool}, {wanted[:12]}", held)
    recording.summary()  # reads all of it, and reading checks
    typer.echo(f"{trace}: ok, {recording.about.holds}")


def make(*, out: Annotated[Path, typer.Argument(help="The .trace folder to write.")], recording: SyntheticSpec) -> None:
    """Write a synthetic recording with the acceptance you ask for; it is labelled synthetic where it is shown."""
    check_new_folder("OUT", out, what="a recording")
    spec = replace(recording, name=out.name.removesuffix(".trace"))
    write_trace(make_trace(spec), out)
    typer.echo(f"{out}: synthetic, {counted(spec.requests, 'request')} of {counted(spec.tokens, 'token')}")
