"""`paceline experiment NAME`: one question about chains, measured, tabulated and drawn; `all` and `list`."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...laboratory.experiments.catalogue import Experiment, experiments
from ...laboratory.findings.figure import check_figure, write_figure
from ...laboratory.findings.finding import ExperimentSetting, Finding
from ...laboratory.findings.page import experiments_page, link_between
from ...laboratory.findings.table import cell, table
from ...progress import Progress, quiet
from ...traces.tries.store import read_trace
from ...whole_files import write_whole
from ..options.comparison import TraceOption
from ..output import JsonOption, check_file_path, check_json_path, print_table, say, show_table, write_json

FAILED = 1  # exit code: an experiment of `all` failed


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentAsked:
    """What an experiment is to run on, as it is typed: each field is an option."""

    pool: Annotated[
        Path | None, typer.Option(help="A pool's folder, with its prompts.jsonl; default: the shipped pool.")
    ] = None
    trace: TraceOption = None
    limit: Annotated[int | None, typer.Option(help="Prompts and recorded requests at most.", min=1)] = None
    seed: Annotated[int | None, typer.Option(help="Of whatever is drawn; default: 0.")] = None
    threads: Annotated[int | None, typer.Option(help="CPU threads of torch; default: 1.", min=1, max=1024)] = None

    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {option: value for option, value in asdict(self).items() if value is not None}


def experiment_commands() -> dict[str, Callable[..., None]]:
    """The `experiment` group: `list`, `all`, and a command for each experiment."""
    known = {name: _command(name, experiment) for name, experiment in experiments().items()}
    return {"list": list_experiments, "all": run_all, **known}


def list_experiments(json: JsonOption = None) -> None:
    """List every experiment."""
    known = experiments()
    data = {"experiments": [{"name": name, "summary": one.summary} for name, one in known.items()]}
    rows = ([cell("experiment", name), cell("what it measures", one.summary)] for name, one in known.items())
    show_table(json, data, table("", rows).grid())


def run_all(
    *,
    figures: Annotated[Path, typer.Option(help="Folder for NAME.svg; made where it is missing.")],
    page_path: Annotated[Path, typer.Option("--page", help="Markdown file that shows all of them; replaced.")],
    asked: ExperimentAsked,
    json: JsonOption = None,
) -> None:
    """Run every experiment, draw it, and write the page of all. Exit 1 if one failed; the others are kept."""
    check_json_path(json, page_path)
    setting = ExperimentSetting(**asked.given())
    meta = read_trace(setting.trace).meta
    check_file_path("--page", page_path)
    figures.mkdir(parents=True, exist_ok=True)
    check_figure(figures / "all.svg")
    findings: dict[str, Finding | Exception] = {}
    known = experiments()
    for number, (name, experiment) in enumerate(known.items()):
        start_s = time.monotonic()
        with Progress(f"experiment {name}", len(known), unit="experiments", done=number), quiet():
            findings[name] = found = _tried(experiment, setting, figures / f"{name}.svg")
        said = f"failed: {' '.join(str(found).split())}" if isinstance(found, Exception) else "done"
        typer.echo(f"{name}: {said} ({time.monotonic() - start_s:.0f} s)", err=True)
    write_whole(page_path, experiments_page(findings, meta, link_between(page_path, figures)))
    failed = [name for name, found in findings.items() if isinstance(found, Exception)]
    if json is not None:
        write_json({name: _to_json(found) for name, found in findings.items()}, json)
    if failed:
        typer.echo(f"paceline: {len(failed)} of {len(findings)} experiments failed: {', '.join(failed)}", err=True)
        raise typer.Exit(FAILED)


def _command(name: str, experiment: Experiment) -> Callable[..., None]:
    """The command of one experiment."""

    def command(
        *,
        asked: ExperimentAsked,
        figure: Annotated[Path | None, typer.Option(help="Draw into this .svg or .png.")] = None,
        json: JsonOption = None,
    ) -> None:
        check_json_path(json, figure)
        check_figure(figure)
        if figure is not None:
            check_file_path("--figure", figure)
        for option, value in asked.given().items():
            if option not in {*experiment.uses, "limit"}:
                raise ValueError(f"--{option} has no part in {name}, got {value}")
        with Progress(f"experiment {name}"), quiet():
            finding = experiment.run(ExperimentSetting(**asked.given()))
        if figure is not None:
            write_figure(finding.panels, figure)
        if json is None:
            _print(finding)
        else:
            write_json(finding.to_json(), json)

    command.__doc__ = experiment.summary
    return command


def _tried(experiment: Experiment, setting: ExperimentSetting, figure: Path) -> Finding | Exception:
    """What was found and drawn, or why not: one experiment must not lose the others' results."""
    try:
        finding = experiment.run(setting)
        write_figure(finding.panels, figure)
    except Exception as error:  # noqa: BLE001 - told by name, and in the exit code
        return error
    return finding


def _to_json(found: Finding | Exception) -> dict[str, Any]:
    if isinstance(found, Exception):
        return {"error": f"{type(found).__name__}: {found}"}
    return found.to_json()


def _print(finding: Finding) -> None:
    say(finding.question)
    for rows in finding.tables:
        print_table(rows.grid())
    say(finding.answer)
