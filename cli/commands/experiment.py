"""`paceline experiment NAME`: one question about chains, measured, tabulated and drawn; `all` and `list`."""

import time
from collections.abc import Callable
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
from ..output import JsonOption, check_file_path, check_json_path, print_table, say, write_json

FAILED = 1  # exit code: an experiment of `all` failed

PoolOption = Annotated[
    Path | None,
    typer.Option("--pool", help="A pool's folder, with its prompts.jsonl; default: the shipped pool."),
]
TraceOption = Annotated[Path | None, typer.Option(help="A .trace folder; default: the shipped recording.")]
LimitOption = Annotated[int | None, typer.Option(help="Prompts and recorded requests at most.", min=1)]
SeedOption = Annotated[int | None, typer.Option(help="Of whatever is drawn; default: 0.")]
ThreadsOption = Annotated[int | None, typer.Option(help="CPU threads of torch; default: 1.", min=1, max=1024)]


def experiment_app() -> typer.Typer:
    """The `experiment` group: a command for each experiment, `list` and `all`."""
    app = typer.Typer(help="Experiments on the shipped pool and recording, or on yours.", no_args_is_help=True)
    app.command("list")(list_experiments)
    app.command("all")(run_all)
    for name, experiment in experiments().items():
        app.command(name, help=experiment.summary)(_command(name, experiment))
    return app


def list_experiments(json: JsonOption = None) -> None:
    """List every experiment."""
    known = experiments()
    if json is not None:
        write_json({"experiments": [{"name": name, "summary": one.summary} for name, one in known.items()]}, json)
        return
    rows = ([cell("experiment", name), cell("what it measures", one.summary)] for name, one in known.items())
    print_table(table("", rows).grid())


def run_all(
    figures: Annotated[Path, typer.Option(help="Folder for NAME.svg; made where it is missing.")],
    page_path: Annotated[Path, typer.Option("--page", help="Markdown file that shows all of them; replaced.")],
    pool: PoolOption = None,
    trace: TraceOption = None,
    limit: LimitOption = None,
    seed: SeedOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = None,
) -> None:
    """Run every experiment, draw it, and write the page of all. Exit 1 if one failed; the others are kept."""
    check_json_path(json, page_path)
    setting = _setting(pool, trace, limit, seed, threads)
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
        pool: PoolOption = None,
        trace: TraceOption = None,
        limit: LimitOption = None,
        seed: SeedOption = None,
        threads: ThreadsOption = None,
        figure: Annotated[Path | None, typer.Option(help="Draw into this .svg or .png.")] = None,
        json: JsonOption = None,
    ) -> None:
        check_json_path(json, figure)
        check_figure(figure)
        if figure is not None:
            check_file_path("--figure", figure)
        given = {"pool": pool, "trace": trace, "seed": seed, "threads": threads}
        for option, value in given.items():
            if value is not None and option not in experiment.uses:
                raise ValueError(f"--{option} has no part in {name}, got {value}")
        with Progress(f"experiment {name}"), quiet():
            finding = experiment.run(_setting(pool, trace, limit, seed, threads))
        if figure is not None:
            write_figure(finding.panels, figure)
        if json is None:
            _print(finding)
        else:
            write_json(finding.to_json(), json)

    return command


def _setting(
    pool: Path | None, trace: Path | None, limit: int | None, seed: int | None, threads: int | None
) -> ExperimentSetting:
    given: dict[str, Any] = {"pool": pool, "trace": trace, "limit": limit, "seed": seed, "threads": threads}
    return ExperimentSetting(**{name: value for name, value in given.items() if value is not None})


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
