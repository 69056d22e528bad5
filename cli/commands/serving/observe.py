"""`paceline observe`: a running server, driven with a workload."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ....arguments import ArgumentError
from ....counted import counted
from ....studies.observed.observe import Asking
from ....studies.observed.observe import observe as drive_server
from ....traces.workloads import WorkloadOptions
from ...errors import Interrupted
from ...options.load import WORKLOAD
from ...options.workload import WorkloadChanges
from ...output import JsonOption, check_json_path, check_new_folder, show

ALL_FAILED = 1  # exit code: no request was answered


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """How a server is asked, as it is typed: each field is an option."""

    model: Annotated[str | None, typer.Option(help="By name; default: the only one that the server lists.")] = None
    chat: Annotated[bool, typer.Option("--chat", help="By /v1/chat/completions; default: by /v1/completions.")] = False
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Environment variable that holds the server's key; it is written nowhere."),
    ] = None
    timeout_s: Annotated[
        float,
        typer.Option("--timeout-seconds", help="Most seconds of a request, to the end of its answer; else it failed."),
    ] = 600.0
    temperature: Annotated[float, typer.Option(help="Sent with each request; 0: the likeliest token.")] = 0.0
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos", help="Ask for answers as long as the workload says (vLLM, SGLang, llama.cpp's server)."
        ),
    ] = False
    usage: Annotated[
        bool, typer.Option("--usage/--no-usage", help="Ask for counts of tokens at the end of each stream.")
    ] = True
    count_tokens: Annotated[
        bool,
        typer.Option("--count-tokens", help="Where no usage came, let the server's tokenizer count, after the run."),
    ] = False
    warmup: Annotated[int, typer.Option(metavar="N", help="Requests sent before, one by one, not measured.")] = 1

    def asking(self) -> Asking:
        """As a record; raises ArgumentError for a variable that holds no key, or an option out of its range."""
        given = {name: getattr(self, name) for name in self.__slots__ if name != "api_key_env"}
        return Asking(api_key=_key(self.api_key_env), **given)


def observe(
    *,
    url: Annotated[str, typer.Argument(metavar="URL", help="http://HOST:PORT of an OpenAI-compatible server.")],
    workload: Annotated[str, typer.Option(metavar="FILE|SPEC", help=WORKLOAD)],
    prompts: Annotated[Path, typer.Option(help="Texts that are sent, JSONL as for run.")],
    out: Annotated[Path | None, typer.Option(help="New folder for the run; paceline validate --observed.")] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", help="Closed loop: keep N requests under way, whatever their times of arrival."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Scale times of arrival to this mean rate per second.")] = None,
    changes: WorkloadChanges,
    server: _Server,
    seed: Annotated[int, typer.Option(help="Of the workload and the order of prompts; sent with each request.")] = 0,
    json: JsonOption = None,
) -> None:
    """Drive a running server with a workload and measure it: TTFT, TPOT, gaps, E2E, tokens, acceptance where it tells.

    Ctrl-C stops the run and keeps what was measured. Exit 1 if no request was answered.
    """
    check_json_path(json, Path(workload), prompts, out)
    check_new_folder("--out", out)
    given = {name: getattr(changes, name) for name in changes.__slots__}
    options = WorkloadOptions(rate=rate, seed=seed, **given)
    found = drive_server(
        url, workload, prompts, asking=server.asking(), options=options, concurrency=concurrency, out=out
    )
    show(json, found)
    finished, requests = found.figures.finished, found.figures.requests
    if found.interrupted:
        kept = "shown" if out is None else "kept"
        raise Interrupted(f"{finished:,} of {counted(requests, 'request')} finished and are {kept}")
    if not finished:
        raise typer.Exit(ALL_FAILED)


def _key(variable: str | None) -> str | None:
    """What an environment variable holds; the value is never shown."""
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key:
        raise ArgumentError(f"`api_key_env` must name an environment variable that is set, got {variable!r}")
    if not (key.isascii() and key.isprintable()):
        raise ArgumentError(
            f"`api_key_env` must name a variable of printable ASCII, {variable!r} holds other characters"
        )
    return key
