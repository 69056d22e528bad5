"""Commands of `paceline`, found as entry points: `arena`, `experiment`, `pool train`, `pool distil`."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from paceline.base.errors import ArgumentError, counted, needs_torch
from paceline.base.files import kept_folder, pool_path, write_whole
from paceline.base.options import given, opt
from paceline.base.terminal import Progress, quiet
from paceline.cli.errors import Interrupted
from paceline.cli.options import PoliciesOption, TraceOption
from paceline.cli.output import (
    FigureOption,
    JsonOption,
    check_figure_path,
    check_file_path,
    check_json_path,
    print_table,
    say,
    show_table,
    write_json,
)
from paceline.reports.figure import check_figure, write_figure
from paceline.traces.contexts.on_disk import read_trace

from .arena.board import BoardRuns, Leaderboard, check_page, leaderboard, lossy, ranking, regret, write_leaderboard
from .arena.cells import SPLIT_FILE, ArenaCell, Side, asked_cells, asked_field, read_split
from .arena.play import BEST_STATIC
from .arena.run import ArenaResults, run_arena
from .experiments.catalogue import Experiment, experiments
from .findings import Cell, ExperimentSetting, Finding, experiments_page, link_between, table, table_cell

FAILED = 1  # exit code: a run ended in an error not due to input


MOST_SEEDS = 1_000  # all runs of all cells are listed before the first is played


def arena(
    *,
    split: Side = opt(Side.all, "Recordings that constants are settled on, those that are reported, or all."),
    split_file: Path | None = opt(None, "TOML with recordings to tune on and to report; default: the committed split."),
    cells: str | None = opt(
        None, "RECORDING/LADDER/LOAD with * for anything, as */batch-1; default: all.", metavar="PATTERN"
    ),
    policy: PoliciesOption = None,
    add_policy: list[str] | None = opt(None, "As --policy, beside the default field; repeatable."),
    seeds: int = opt(2, "Orders of the requests; the first is the recorded one.", least=1, most=MOST_SEEDS),
    jobs: int = opt(2, "Processes.", least=1, most=1024),
    work: Path | None = opt(None, "Folder of recordings and results; default: the user's cache."),
    make: bool = opt(False, "Make recordings that lack, pools too: minutes for each."),
    oracles: bool = opt(False, "Play oracles too, in some cells: half a minute for each."),
    page: Path | None = opt(None, "NAME.md to write the leaderboard into, with figures/NAME.svg and NAME.json."),
    by_cell: bool = opt(False, "Print every cell's ratios too."),
    json: JsonOption = None,
) -> None:
    """Play policies in cells of recording, ladder of costs and load, beside the best static chain of each.

    Results are kept: a run that was cut short continues from them. Exit 1 if a run failed.
    """
    check_json_path(json, work, *(check_page(page) if page is not None else ()))
    sides = read_split(split_file or SPLIT_FILE)
    chosen = asked_cells(sides, split, cells)
    field = asked_field(policy, add_policy)
    if page is not None and not any(cell.recording in sides.report for cell in chosen):
        raise ValueError("--page needs cells to report, and --split and --cells choose none of them")
    folder = work if work is not None else kept_folder() / "arena"
    results = run_arena(
        chosen, field, work=folder, seeds=seeds, jobs=jobs, make=make, oracles=oracles, tuning=sides.tune
    )
    if not results.is_whole:
        raise Interrupted(f"{counted(len(results.played), 'run')} of the arena are kept, and not played again")
    board = leaderboard(BoardRuns(results.played), sides, results.missing, gaps=tuple(results.gaps()))
    if page is not None:
        write_leaderboard(board, page)
    if json is not None:
        write_json(board.to_json() | results.to_json(), json)
    else:
        if by_cell and board.policies:
            print_table(table("", [_of_cell(board, cell) for cell in board.runs.cells]).grid())
        _print_board(board, results)
    if results.failed:
        raise typer.Exit(FAILED)


def _of_cell(board: Leaderboard, where: ArenaCell) -> list[Cell]:
    """The best static chain of a cell in the recorded order, and the others' speed relative to it."""
    ratios = [table_cell(name, board.runs.ratios(name).get(where), "", 3) for name in board.policies]
    best = board.runs.of(BEST_STATIC, where)[0]
    return [table_cell("cell", str(where)), table_cell("best static chain", best.chain), *ratios]


def _print_board(board: Leaderboard, results: ArenaResults) -> None:
    if board.lossless:
        print_table(ranking(board).grid())
    if board.lossy:
        print_table(lossy(board).grid())
    if board.regrets():
        print_table(regret(board).grid())
    for name, why in results.missing.items():
        say(f"recording {name} is left out: {why}")
    for (policy, why), count in Counter((one.run.policy, one.why) for one in results.left_out).items():
        say(f"{policy} is left out of {counted(count, 'run')}: {why}")
    for line in results.failed:
        say(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentAsked:
    """Options: what an experiment runs on."""

    pool: Path | None = opt(None, "A pool's folder, with its prompts.jsonl; default: the shipped pool.")
    trace: TraceOption = None
    limit: int | None = opt(None, "Prompts and recorded requests at most.", least=1)
    seed: int | None = opt(None, "Seed of everything that is drawn; default: 0.")
    threads: int | None = opt(None, "CPU threads of torch; default: 1.", least=1, most=1024)


def experiment_commands() -> dict[str, Callable[..., None]]:
    """The `experiment` group: `list`, `all`, and a command for each experiment."""
    known = {name: _command(name, experiment) for name, experiment in experiments().items()}
    return {"list": list_experiments, "all": run_all, **known}


def list_experiments(json: JsonOption = None) -> None:
    """List every experiment."""
    known = experiments()
    data = {"experiments": [{"name": name, "summary": one.summary} for name, one in known.items()]}
    rows = (
        [table_cell("experiment", name), table_cell("what it measures", one.summary)] for name, one in known.items()
    )
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
    setting = ExperimentSetting(**given(asked))
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
    def command(
        *,
        asked: ExperimentAsked,
        figure: FigureOption = None,
        json: JsonOption = None,
    ) -> None:
        check_json_path(json, figure)
        check_figure_path(figure)
        for option, value in given(asked).items():
            if option not in {*experiment.uses, "limit"}:
                raise ValueError(f"--{option} does not apply to {name}, got {value}")
        with Progress(f"experiment {name}"), quiet():
            finding = experiment.run(ExperimentSetting(**given(asked)))
        if figure is not None:
            write_figure(finding.panels, figure)
        if json is None:
            say(finding.question)
            for rows in finding.tables:
                print_table(rows.grid())
            say(finding.answer)
        else:
            write_json(finding.to_json(), json)

    command.__doc__ = experiment.summary
    return command


def _tried(experiment: Experiment, setting: ExperimentSetting, figure: Path) -> Finding | Exception:
    """The finding, with its figure drawn, or the error: one experiment must not lose the others' results."""
    try:
        finding = experiment.run(setting)
        write_figure(finding.panels, figure)
    except Exception as error:  # noqa: BLE001 - reported by name, and in the exit code
        return error
    return finding


def _to_json(found: Finding | Exception) -> dict[str, Any]:
    if isinstance(found, Exception):
        return {"error": f"{type(found).__name__}: {found}"}
    return found.to_json()


def train(
    out: Annotated[Path, typer.Argument(help="Folder of the pool to write.")],
    work: Path | None = opt(None, "Folder for checkpoints; OUT.work where not given."),
    threads: int = opt(1, "CPU threads; another number gives other roundings.", least=1, most=1024),
    tiny: bool = opt(False, "Run every stage in seconds, to try it out."),
) -> None:
    """Train the pool of small models on this machine; a second call continues one that was cut short."""
    with needs_torch():
        from paceline.runtime.threads import use_threads

        from .training.pool import train_pool
        from .training.recipe import read_recipe
    use_threads(threads)
    recipe = read_recipe("tiny" if tiny else "pico")
    options = "".join([f" --threads {threads}" if threads > 1 else "", " --tiny" if tiny else ""])
    command = f"paceline pool train {out.name}{options}"
    train_pool(recipe, out, work or out.with_name(f"{out.name}.work"), command=command)
    typer.echo(f"{out}: trained; see {out / 'CARD.md'}")


def distil(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="A pool.toml, its folder, or a shipped pool's name.")],
    out: Annotated[Path, typer.Argument(help="Folder of the pool with drafters to write.")],
    work: Path | None = opt(None, "Folder for texts and checkpoints; OUT.work if not given."),
    processes: int = opt(1, "Processes at a time, each with one CPU thread.", least=1, most=1024),
    device: str = opt("cpu", "Where texts are written and drafters trained: cpu, cuda or cuda:1."),
    dialogues: int | None = opt(None, "Dialogues to write; more make better drafters. Default: 2560.", least=1),
    rows: int | None = opt(None, "Dialogues at a time; thousands keep a GPU busy. Default: 256.", least=1),
    tiny: bool = opt(False, "Run a little of every stage, to try it out."),
) -> None:
    """Train drafters for a pool's target, and weights of its submodels; a second call continues one that was cut short.

    The target writes questions itself, by its chat template, and answers them.
    """
    with needs_torch():
        from paceline.runtime.pools.members import a_device, usable_device
        from paceline.runtime.threads import check_processors

        from .training.distilling import distil_pool
        from .training.recipe import read_distillation
    check_processors("`--processes`", processes)
    if usable_device(device) is None:
        raise ArgumentError(f"`--device` must be {a_device()}, got {device!r}")
    typed = {"processes": processes if processes > 1 else None, "device": None if device == "cpu" else device}
    typed |= {"dialogues": dialogues, "rows": rows}
    options = "".join([f" --{name} {value}" for name, value in typed.items() if value is not None])
    command = f"paceline pool distil {pool} {out.name}{options}{' --tiny' if tiny else ''}"
    recipe = read_distillation("tiny" if tiny else "full").sized(dialogues, rows)
    folder = work or out.with_name(f"{out.name}.work")
    distil_pool(pool_path(pool), recipe, out, folder, processes=processes, command=command, device=device)
    typer.echo(f"{out}: distilled; see {out / 'CARD.md'}")
