"""`paceline trace import`: what another engine or a benchmark logged becomes a recording."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from ..base.options import opt
from ..studies.import_logs import import_logs
from ..traces.importers import AUTO, ImportOptions, Load, format_names
from ..traces.meta import NgramInfo
from ..traces.rounds.rounds import LOOKUP
from ..traces.shapes_given import given_shapes
from .options import ModelsOption
from .output import JsonOption, check_json_path, check_new_folder, show
from .typed import named_texts

FormatArgument = Annotated[
    str,
    typer.Argument(
        metavar="FORMAT",
        help=f"One of {', '.join((*format_names(), AUTO))} ({AUTO}: by its keys), or FILE.py:FORMAT (docs/plugins.md).",
    ),
]
FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files to import, plain or .gz.")]


def import_(
    format_name: FormatArgument,
    files: FilesArgument,
    out: Annotated[Path, typer.Option(help="The .trace folder to write.")],
    name: str | None = opt(None, "Name of the recording; default: that of the folder."),
    drafter: list[str] | None = opt(None, "What to call a drafter; repeatable.", metavar="FILE_OR_METHOD=NAME"),
    token_drafter: list[str] | None = opt(
        None,
        "A drafter that reads tokens only, so that one round informs every later start in it; repeatable.",
        metavar="NAME",
    ),
    window: list[str] | None = opt(None, "Tokens a drafter drafts in a round; repeatable.", metavar="NAME=K"),
    start: list[str] | None = opt(
        None,
        "Whether a prefill emitted a token before a drafter's first round, where the format does not say; repeatable.",
        metavar="NAME=prefill|draft",
    ),
    models: ModelsOption = None,
    target: str = opt("target", "What to call the model that verifies."),
    skip_bad_lines: bool = opt(False, "Skip and count lines that break their format."),
    requests: int | None = opt(None, "How many requests, for logs that name none; with --output-tokens."),
    output_tokens: int | None = opt(None, "Tokens of each such answer."),
    prompt_tokens: int | None = opt(None, "Tokens of each such prompt."),
    line: int | None = opt(None, "Line on which the result to import begins, in a file of several.", metavar="N"),
    seed: int | None = opt(None, "Seed of what is drawn because the log counts it and does not place it; default: 0."),
    lookup: str | None = opt(
        None,
        "How prompt lookup copies, for logs with token ids: the first, last or longest occurrence.",
        metavar="max_match=N,min_match=N,occurrence=WHICH",
    ),
    json: JsonOption = None,
) -> None:
    """Import what others logged: acceptance by round, and seconds where they were measured."""
    check_new_folder("--out", out, what="a recording")
    check_json_path(json, out, *files, *(text.rpartition("=")[2] for text in models or ()))
    options = ImportOptions(
        name=out.name.removesuffix(".trace") if name is None else name,
        target=target,
        names=named_texts("--drafter", "NAME", drafter, named_by_file=True),
        token_drafters=frozenset(token_drafter or ()),
        windows={key: _window(key, value) for key, value in named_texts("--window", "K", window).items()},
        prefilled={key: _prefilled(key, value) for key, value in named_texts("--start", "START", start).items()},
        models=given_shapes(models or (), target),
        skip_bad_lines=skip_bad_lines,
        lookup=None if lookup is None else _lookup(lookup),
        load=_load(requests, output_tokens, prompt_tokens),
        line=line,
        seed=seed,
    )
    imported = import_logs(files, out, options, format_name=format_name)
    show(json, imported)


def _load(requests: int | None, output_tokens: int | None, prompt_tokens: int | None) -> Load | None:
    """The requests of a log that names none; raises ValueError for an incomplete set of options."""
    if requests is None and output_tokens is None and prompt_tokens is None:
        return None
    if requests is None or output_tokens is None:
        missing = "--requests" if requests is None else "--output-tokens"
        raise ValueError(f"{missing} must be given beside the other counts of requests, got none")
    return Load(requests=requests, output_tokens=output_tokens, prompt_tokens=prompt_tokens or 0)


def _lookup(text: str) -> NgramInfo:
    """How prompt lookup copies, out of `max_match=N,min_match=N,occurrence=WHICH`; raises ValueError."""
    values: dict[str, int | str] = {"name": LOOKUP.name}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key in values or key not in ("max_match", "min_match", "occurrence"):
            raise ValueError(f"--lookup must name max_match, min_match and occurrence once each, got {part!r}")
        whole = value.isascii() and value.isdigit() and len(value) < len(str(2**31))
        values[key] = int(value) if whole and key != "occurrence" else value
    try:
        return NgramInfo.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "min_match"
    raise ValueError(f"--lookup {field} {first['msg'].removeprefix('Value error, ')}, got {text!r}")


def _window(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > len(str(2**31 - 1)):
        raise ValueError(f"--window {name} must be a whole number, got {text!r}")
    return int(text)


def _prefilled(name: str, text: str) -> bool:
    if text not in ("prefill", "draft"):
        raise ValueError(f"--start {name} must be prefill or draft, got {text!r}")
    return text == "prefill"
