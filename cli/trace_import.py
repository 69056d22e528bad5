"""`paceline trace import`: what another engine or a benchmark logged becomes a recording."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from ..progress import Progress
from ..traces.counted import counted
from ..traces.imported.rounds import DrafterInfo, RoundsMeta, RoundsRequest
from ..traces.importers import AUTO, ImportOptions, choose_format, format_names, import_recording
from ..traces.shapes import given_shapes
from .model_shapes import ModelsOption
from .output import JsonOption, check_json_path, check_new_folder, write_json


def import_(
    format_name: Annotated[
        str,
        typer.Argument(metavar="FORMAT", help=f"One of {', '.join((*format_names(), AUTO))} ({AUTO}: by its keys)."),
    ],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files to import, plain or .gz.")],
    out: Annotated[Path, typer.Option(help="The .trace folder to write.")],
    name: Annotated[str | None, typer.Option(help="Of the recording; by default that of the folder.")] = None,
    drafter: Annotated[
        list[str] | None, typer.Option(metavar="FILE_OR_METHOD=NAME", help="What to call a drafter; repeatable.")
    ] = None,
    token_drafter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A drafter that reads tokens only, so that rounds overlap; repeatable."),
    ] = None,
    window: Annotated[
        list[str] | None, typer.Option(metavar="NAME=K", help="Tokens a drafter drafts in a round; repeatable.")
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=prefill|draft",
            help="Whether a prefill emitted a token before a drafter's first round, where the format does not say; "
            "repeatable.",
        ),
    ] = None,
    models: ModelsOption = None,
    target: Annotated[str, typer.Option(help="What to call the model that verifies.")] = "target",
    json: JsonOption = None,
) -> None:
    """Import what others logged: acceptance by round, and seconds where they were measured."""
    check_new_folder("--out", out, what="a recording")
    check_json_path(json, out, *files, *(Path(text.rpartition("=")[2]) for text in models or ()))
    options = ImportOptions(
        name=out.name.removesuffix(".trace") if name is None else name,
        target=target,
        names=_pairs("--drafter", drafter),
        token_drafters=frozenset(token_drafter or ()),
        windows={key: _window(key, value) for key, value in _pairs("--window", window).items()},
        prefilled={key: _prefilled(key, value) for key, value in _pairs("--start", start).items()},
        models=given_shapes(models or (), target),
    )
    source = choose_format(format_name, files)
    with Progress("importing", unit="requests") as progress:
        seen = _Counted(progress)
        meta = import_recording(source.name, files, out, options, watch=seen.watch)
    if json is not None:
        write_json({"trace": str(out), "requests": seen.requests, **meta.model_dump(mode="json")}, json)
        return
    if format_name == AUTO:
        typer.echo(f"saw {source.words}")
    typer.echo(_told(out, meta, seen.requests))
    for note in meta.notes:
        typer.echo(f"  {note}")


class _Counted:
    """Counts requests as they pass, and says how many."""

    def __init__(self, progress: Progress) -> None:
        self.requests = 0
        self._progress = progress

    def watch(self, requests: Iterable[RoundsRequest]) -> Iterable[RoundsRequest]:
        """The same requests."""
        for request in requests:
            self.requests += 1
            self._progress.advance()
            yield request


def _pairs(option: str, values: list[str] | None) -> dict[str, str]:
    """`KEY=VALUE` options; the last `=` parts them, since files may hold some."""
    pairs: dict[str, str] = {}
    for text in values or ():
        key, _, value = text.rpartition("=")
        if not key or not value:
            raise ValueError(f"{option} must be of the form KEY=VALUE, got {text!r}")
        if key in pairs:
            raise ValueError(f"{option} must name {key} once, got {text!r}")
        pairs[key] = value
    return pairs


def _window(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > len(str(2**31 - 1)):
        raise ValueError(f"--window {name} must be a whole number, got {text!r}")
    return int(text)


def _prefilled(name: str, text: str) -> bool:
    if text not in ("prefill", "draft"):
        raise ValueError(f"--start {name} must be prefill or draft, got {text!r}")
    return text == "prefill"


def _told(out: Path, meta: RoundsMeta, requests: int) -> str:
    drafters = ", ".join(_drafter(drafter) for drafter in meta.drafters) or "none"
    return f"{out}: imported from {meta.source}, {counted(requests, 'request')}, drafters {drafters}"


def _drafter(drafter: DrafterInfo) -> str:
    window = "window unknown" if drafter.window is None else f"window {drafter.window}"
    return f"{drafter.name} ({window}{'' if drafter.by_start else ', reads tokens'})"
