"""The application: every group of commands in one place."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer
from typer.main import get_command

from .commands.agree import agree
from .commands.compare import compare
from .commands.experiment import experiment_app
from .commands.policy import policy_app
from .commands.pool import pool_app
from .commands.record import record
from .commands.run import run
from .commands.trace import trace_app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("paceline"))
        raise typer.Exit


def paceline(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Replay recorded token acceptance to compare speculative-decoding policies, and run them on real models."""


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
    app.command()(compare)
    app.command()(run)
    app.command()(record)
    app.command()(agree)
    app.add_typer(trace_app(), name="trace")
    app.add_typer(policy_app(), name="policy")
    app.add_typer(pool_app(), name="pool")
    app.add_typer(experiment_app(), name="experiment")
    return get_command(app)
