"""`paceline run | record | agree | prompts`: real models under a policy, alone, recorded, and beside a replay."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..base.errors import counted, escaped, needs_torch, repeated
from ..base.files import pool_path, write_whole
from ..base.options import opt
from ..decoding.rollouts import Rollouts
from ..runtime.forward_kinds import KINDS, ForwardKind, replaced
from ..runtime.launched import launched
from ..runtime.pools.pool_file import read_pool_file
from ..runtime.prompts import read_prompts
from ..runtime.tasks import FORMS, prompt_lines, read_task
from ..studies.options import AgreeOptions, LiveOptions, RecordOptions, RunOptions
from ..traces.contexts.meta import ROUNDING
from .app import is_first
from .errors import Interrupted
from .options import GivenMemory, LiveSampling, PoolOption, PromptsOption, RecordedSampling, named_recording
from .output import (
    FigureOption,
    JsonOption,
    check_figure_path,
    check_file_path,
    check_json_path,
    check_new_folder,
    say,
    show,
)
from .typed import option_of

DIFFERENT = 1  # exit code: the worlds differ

GivenTraceOption = Annotated[
    Path | None,
    typer.Option(
        callback=named_recording, help="A .trace folder of these prompts and this pool; default: recorded now."
    ),
]


def agree(
    *,
    prompts: PromptsOption,
    policy: list[str] | None = opt(None, "As --policy of compare, once for each; default: a representative set."),
    pool: PoolOption = None,
    trace: GivenTraceOption = None,
    sampling: RecordedSampling,
    asked: AgreeOptions,
    json: JsonOption = None,
) -> None:
    """Run policies in both worlds, on a recording and on the models, and compare every step. Exit 1 if they differ."""
    own = replace(asked, sampling=sampling.chosen())
    check_json_path(json, prompts)
    requests = read_prompts(prompts)
    with needs_torch():
        from ..studies.agree import agree as agreements_of
    found = agreements_of(pool, requests, policy, recording=trace, **vars(own))
    show(json, found)
    if not found.agree:
        raise typer.Exit(DIFFERENT)


def record(
    *,
    out: Annotated[Path, typer.Argument(help="The .trace folder to write.")],
    prompts: PromptsOption,
    pool: PoolOption = None,
    sampling: RecordedSampling,
    closure: Literal["monotone", "full"] = opt("monotone", "monotone (Exact chains) or full (lossy rules)."),
    reach: int = opt(16, "Most tokens off the trunk.", least=0),
    run: int | None = opt(
        None, "With --closure monotone: most tokens in a row by one member after a larger one's; default: 8.", least=0
    ),
    trees: list[str] | None = opt(None, "Token trees to keep too: draft:4x2x1, draft:beam=4,depth=5; repeatable."),
    limit: Annotated[int | None, option_of(LiveOptions, "limit")] = None,
    asked: RecordOptions,
) -> None:
    """Record what every model of a pool says at every context that an Exact chain can reach.

    The same command continues a recording that was cut short.
    """
    kept: dict[str, Any] = {"closure": closure, "reach": reach, "run": run, "trees": trees or ()}
    own = replace(asked, sampling=sampling.chosen(), **kept)
    requests = read_prompts(prompts)[:limit]
    check_new_folder("OUT", out, what="a recording")
    with needs_torch():
        from ..studies.record import record as record_prompts
    trace = record_prompts(pool, requests, out, **vars(own))
    contexts = sum(request.trie.num_nodes for request in trace.requests)
    typer.echo(f"{out}: {counted(len(trace.requests), 'request')}, {counted(contexts, 'context')}")
    ties = trace.meta.trunk_near_ties
    assert ties is not None
    typer.echo(f"{trace.meta.dtype}: {ties.words}{'' if trace.meta.exact else '; ' + ROUNDING}")


if TYPE_CHECKING:
    from ..studies.decode import Decoded, DecodedByPolicy

SOME_FAILED = 1  # exit code: requests failed, the others are answered


def _forward(name: str) -> str:
    if name not in KINDS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, KINDS))}{replaced(name)}.")
    return name


ForwardOption = Annotated[
    ForwardKind,
    typer.Option(
        parser=_forward,
        metavar=f"<{'|'.join(KINDS)}>",
        help="Run models fused, by their own modules, or by what is quicker here; fused:NAME multiplies everything by "
        "one product; compiled are the modules by torch.compile.",
    ),
]
UnsandboxedArgument = Annotated[
    Literal["unsandboxed"] | None,
    typer.Argument(metavar="[unsandboxed]", help="Only after --run-tests.", show_default=False),
]


def run(
    unsandboxed: UnsandboxedArgument = None,
    *,
    prompts: PromptsOption,
    out: Path | None = opt(None, "New folder for outputs.jsonl and the run log."),
    pool: PoolOption = None,
    policy: list[str] | None = opt(None, "As --policy of compare; several run in turn, in one table; default: plain."),
    repeats: int | None = opt(
        None, "With several policies: rounds in which each answers all prompts once; default: 3.", least=1, most=1000
    ),
    sampling: LiveSampling,
    memory: GivenMemory,
    asked: RunOptions,
    forward: ForwardOption = "auto",
    run_tests: bool = opt(
        False,
        "Where prompts have tests of code, run what the model wrote, in a sandbox; --run-tests unsandboxed: "
        "without one, with your rights.",
    ),
    figure: FigureOption = None,
    json: JsonOption = None,
) -> None:
    """Decode prompts with the models of a pool; the policy is the very object the simulator drives.

    Exit 1 if requests failed; the others are answered.
    """
    names = policy or ["plain"]
    _check_several(names, out, asked.rollouts, repeats)
    if unsandboxed and not run_tests:
        raise ValueError("unsandboxed stands after --run-tests, got it without")
    own = replace(asked, sampling=sampling.chosen(), forward=forward, run_tests=unsandboxed or run_tests)
    check_stops(own.stop or [])
    kept = memory.checked()
    check_json_path(json, out, prompts, figure)
    check_figure_path(figure, out, prompts)
    check_new_folder("--out", out)
    requests = read_prompts(prompts)
    check_split(pool)
    with needs_torch():
        from ..runtime.ranks import leave
        from ..runtime.threads import Memory
        from ..studies.decode import REPEATS, DecodeOptions, decode, decode_each
    options = {**vars(own), "memory": Memory(**kept)}
    if len(names) > 1:
        each = decode_each(pool, requests, names, DecodeOptions(**options), repeats=repeats or REPEATS)
        leave()
        if is_first():
            _tell_each(each, len(names), figure, json)
        return
    decoded = decode(pool, requests, names[0], **options)
    leave()
    if is_first():
        _tell(decoded, counted(decoded.num_requests, "request"), out, json, figure)


def _tell(decoded: "Decoded", asked: str, out: Path | None, json: Path | None, figure: Path | None) -> None:
    """Write and print what was decoded; raises Exit for failed requests, Interrupted if cut short."""
    if decoded.quality_interrupted:
        typer.echo("paceline: interrupted: the answers are kept, their quality is not measured", err=True)
    if out is not None and decoded.outputs:
        decoded.write(out)
    if json is None and out is None:
        for output in decoded.outputs:
            leaves = f", leaves {output.parent} after {counted(output.depth, 'token')}" if output.parent else ""
            typer.echo(f"--- {output.request_id} ({output.tag}){leaves}\n{escaped(output.text)}")
    # First: without an answer the figure raises an error, which would hide these.
    for output in decoded.failed:
        typer.echo(f"paceline: failed: {output.error}", err=True)
    show(json, decoded, figure=figure)
    if decoded.log.meta["interrupted"]:
        raise Interrupted(f"{_at(decoded)}{len(decoded.outputs)} of {asked} ended and are kept")
    if decoded.failed:
        typer.echo(f"paceline: {len(decoded.failed)} of {asked} failed", err=True)
        raise typer.Exit(SOME_FAILED)


def _tell_each(each: "DecodedByPolicy", asked: int, figure: Path | None, json: Path | None) -> None:
    """Print what several policies wrote; raises Exit for failed requests, Interrupted if cut short."""
    failed = [output for run in each.runs for output in run.failed]
    for output in failed:
        typer.echo(f"paceline: failed: {output.error}", err=True)
    show(json, each, figure=figure)
    last = each.runs[-1]
    if last.log.meta["interrupted"] or last.quality_interrupted:
        raise Interrupted(f"{_at(last)}{len(each.runs)} of {asked} policies began, the last one did not end")
    if each.is_cut_short:
        rounds = counted(each.num_rounds, "whole round")
        raise Interrupted(f"every policy answered, and speeds are of {rounds} instead of {each.asked_rounds}")
    if failed:
        typer.echo(f"paceline: {counted(len(failed), 'request')} failed", err=True)
        raise typer.Exit(SOME_FAILED)


def _at(run: "Decoded") -> str:
    """Where in a policy's file an interrupt came, as the beginning of a sentence; empty if in none."""
    place = run.log.meta.get("interrupted_at")
    return "" if place is None else f"in {run.log.meta['policy']} at {place}; "


def _check_several(
    names: Sequence[str], out: Path | None, rollouts: Rollouts | str | None, repeats: int | None
) -> None:
    """Raises ValueError for options that go with one policy alone, or with several only."""
    if len(names) == 1 and repeats is not None:
        raise ValueError(f"--repeats goes with several --policy, got {names[0]}")
    if len(names) > 1 and (out is not None or rollouts is not None):
        option = "--out" if out is not None else "--rollouts"
        raise ValueError(f"{option} goes with one --policy, got {', '.join(names)}; --json has the answers of each")


def check_split(pool: Path | None) -> None:
    """Raises ValueError where several processes have nothing to share, and PoolFileError for a broken pool file."""
    num_ranks = launched().num_ranks
    if num_ranks == 1:
        return
    file, content = read_pool_file(pool_path(pool))
    if not any(entry.tp_plan for entry in content.members):
        raise ValueError(f'{file}: torchrun needs a member with tp_plan = "auto", got none for {num_ranks} processes')


def check_stops(texts: Sequence[str]) -> None:
    """Raise ValueError for a stop string that no answer can hold, before models are loaded."""
    for text in texts:
        if not text:
            raise ValueError("--stop must not be empty, got ''")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"--stop must be UTF-8, got {text!r}")


def prompts(
    form: Annotated[str, typer.Argument(metavar="FORM", help=f"Form of the files: {', '.join(FORMS)}.")],
    file: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The task's own files, also as .gz.")],
    out: Annotated[Path, typer.Option(help="JSONL to write, a line a question.")],
    limit: int | None = opt(None, "Only this many of each file, the first ones.", least=1),
) -> None:
    """Turn files of GSM8K, MGSM, HumanEval, MT-Bench or Spec-Bench into prompts, with their right answers.

    questions are those of MT-Bench and Spec-Bench: first turns only, as a second one continues an answer.
    """
    check_file_path("--out", out)
    found = tuple(prompt for path in file for prompt in read_task(form, path)[:limit])
    twice = repeated(prompt.request_id for prompt in found)
    if twice:
        raise ValueError(f"FILE must name each question once, got {twice[0]} twice")
    write_whole(out, prompt_lines(found))
    scored = sum(prompt.answer is not None for prompt in found)
    tested = sum(prompt.tests is not None for prompt in found)
    tests = f", {tested:,} with tests that run --run-tests runs" if tested else ""
    say(f"{out}: {counted(len(found), 'prompt')}, {scored:,} with an answer to be checked{tests}")
