"""The application: every command, by itself or in its group."""

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Annotated

import typer
from typer.main import get_command

from .commands import policy, pool, trace
from .commands.agree import agree
from .commands.arena import arena
from .commands.arena_models import arena_models
from .commands.compare import compare
from .commands.experiment import experiment_commands
from .commands.profile import profile
from .commands.record import record
from .commands.run import run
from .commands.serving.cluster import cluster
from .commands.serving.metrics import metrics
from .commands.serving.simulate import simulate
from .commands.serving.workload import workload
from .commands.trace_import import import_
from .commands.validate import validate
from .options.records import spelled_out
from .ranks import check_command

Commands = Mapping[str, Callable[..., None]]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("paceline"))
        raise typer.Exit


def paceline(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Replay recorded token acceptance to compare speculative-decoding policies, and run them on real models."""
    check_command(context.invoked_subcommand)


def command() -> Callable[..., object]:
    """The whole command line as one callable."""
    app = typer.Typer(
        name="paceline",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(paceline)
    _add(
        app,
        {
            "compare": compare,
            "simulate": simulate,
            "workload": workload,
            "cluster": cluster,
            "metrics": metrics,
            "run": run,
            "record": record,
            "agree": agree,
            "profile": profile,
            "validate": validate,
            "arena": arena,
            "arena-models": arena_models,
        },
    )
    for name, purpose, commands in _groups():
        group = typer.Typer(help=purpose, no_args_is_help=True)
        _add(group, commands)
        app.add_typer(group, name=name)
    return get_command(app)


def _add(app: typer.Typer, commands: Commands) -> None:
    for name, run_it in commands.items():
        app.command(name)(spelled_out(run_it))


def _groups() -> Iterator[tuple[str, str, Commands]]:
    """(name, what it is for, its commands) of each group."""
    of_traces: Commands = {"inspect": trace.inspect, "check": trace.check, "make": trace.make, "import": import_}
    yield "trace", "Look at recordings, check them, import or make some.", of_traces
    of_policies: Commands = {"list": policy.list_policies, "check": policy.check, "fit": policy.fit}
    yield (
        "policy",
        "What policies there are, whether one keeps the contract, and fitting those that need it.",
        of_policies,
    )
    of_pools: Commands = {
        "show": pool.show_members,
        "check": pool.check,
        "train": pool.train,
        "search-slim": pool.search_slim,
        "forced": pool.forced,
    }
    yield "pool", "Pools of real models.", of_pools
    yield "experiment", "Experiments on the shipped pool and recording, or on yours.", experiment_commands()
