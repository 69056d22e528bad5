"""The application: every command, by itself or in its group."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer
from typer.main import get_group

from .commands_by_name import function_by_name, group_by_name, made_group_by_name
from .ranks import check_command

# By the name that is typed: the module in commands/, and the function whose docstring says what it does.
COMMANDS = {
    "compare": "compare:compare",
    "simulate": "serving.simulate:simulate",
    "workload": "serving.workload:workload",
    "cluster": "serving.cluster:cluster",
    "metrics": "serving.metrics:metrics",
    "observe": "serving.observe:observe",
    "run": "run:run",
    "prompts": "tasks.prompts:prompts",
    "record": "record:record",
    "agree": "agree:agree",
    "profile": "profile:profile",
    "validate": "validate:validate",
    "arena": "arena:arena",
    "arena-models": "arena_models:arena_models",
}
TRACE = {
    "list": "trace:list_recordings",
    "inspect": "trace:inspect",
    "check": "trace:check",
    "make": "trace:make",
    "import": "trace_import:import_",
}
POLICY = {
    "list": "policy:list_policies",
    "show": "policy:show_policy",
    "check": "policy:check",
    "fit": "policy:fit",
}
POOL = {
    "show": "pool:show_members",
    "check": "pool:check",
    "fetch": "pool:fetch",
    "train": "pool:train",
    "distil": "pool:distil",
    "search-slim": "pool:search_slim",
    "forced": "pool:forced",
}
GROUPS = (
    ("trace", "Look at recordings, check them, import or make some.", TRACE),
    ("policy", "What policies there are, whether one keeps the contract, and fitting those that need it.", POLICY),
    ("pool", "Pools of real models.", POOL),
)
EXPERIMENT = ("experiment", "Experiments on the shipped pool and recording, or on yours.")


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
    found = get_group(app)
    for name, place in COMMANDS.items():
        found.add_command(function_by_name(name, place))
    for name, purpose, places in GROUPS:
        found.add_command(group_by_name(name, purpose, places))
    found.add_command(made_group_by_name(*EXPERIMENT, "experiment:experiment_commands"))
    return found
