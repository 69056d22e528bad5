"""The application: every command by its name. The module of a command is imported when the command is called.

Together they import all of paceline, and every command, `--help` and `--version` would wait for that. Related options
are the fields of a record: declared once, used by several commands, passed on as one. Of several processes of torchrun,
rank 0 prints and writes, and the first one that fails says why.
"""

import ast
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points, version
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from ..base.errors import LABORATORY, install_hint, needs_torch
from ..base.terminal import quiet
from ..runtime.launched import launched
from .panels import PanelledCommand, SectionedGroup

TOGETHER = "run"  # what several processes can do together


def check_command(name: str | None) -> None:
    """Raises ValueError for a command that each process would repeat."""
    num_ranks = launched().num_ranks
    if num_ranks > 1 and name != TOGETHER:
        raise ValueError(f"torchrun must start `paceline {TOGETHER}` or a single process, got `{name}` in {num_ranks}")


def is_first() -> bool:
    """Whether this process prints and writes."""
    return launched().rank == 0


def is_heard(*, interrupted: bool) -> bool:
    """Whether this process, about to end, says why; an interrupt reaches all processes, and rank 0 reports it."""
    own = launched()
    if own.num_ranks == 1:
        return True
    if interrupted and own.rank > 0:
        return False
    with needs_torch():
        from ..runtime.ranks import first_to_fail
    return first_to_fail()


def lost_rank(error: BaseException) -> str | None:
    """The message for an error that another process caused; None for other errors."""
    if launched().num_ranks == 1:
        return None
    with needs_torch():
        from ..runtime.ranks import of_a_lost_rank
    return of_a_lost_rank(error)


@contextmanager
def one_voice() -> Iterator[None]:
    """Within the block ranks other than 0 print nothing and show no progress; their errors are still reported."""
    if is_first():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), quiet():  # noqa: PTH123
        yield


Function = Callable[..., None]


class CommandByName(TyperCommand):
    """A command or group that `make` builds when it is first called; until then it has only a name and a purpose."""

    def __init__(self, name: str, make: Callable[[], Any], purpose: Callable[[], str]) -> None:
        super().__init__(name, rich_markup_mode=None)
        self.make = cache(make)
        self._purpose = purpose

    def make_context(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as typer's own, whose types are private
        """Parse the arguments; in the context of the command itself."""
        return self.make().make_context(*args, **options)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Its purpose, cut to `limit` characters."""
        return TyperCommand(self.name, help=self._purpose()).get_short_help_str(limit)


@dataclass(frozen=True, slots=True)
class LaboratoryCommand:
    """A command of the laboratory, a package of its own that may not be installed.

    `words` are as typed, and the name of its entry point in the group `paceline.commands`.
    """

    words: str
    purpose: str

    def found(self) -> Any:  # noqa: ANN401 - a command, or a function that makes some
        """Load its entry point; raises ModuleNotFoundError, which says what to install, if there is none."""
        for entry in entry_points(group="paceline.commands", name=self.words):
            return _imported(entry.module, entry.attr)
        how = install_hint(LABORATORY)
        raise ModuleNotFoundError(f"`paceline {self.words}` needs paceline-laboratory, in paceline's checkout: {how}")


def function_by_name(name: str, place: str | LaboratoryCommand) -> CommandByName:
    """The command of a function; `place` is its module in `cli/` and its name, as in `serving:cluster`."""
    if isinstance(place, LaboratoryCommand):
        return CommandByName(name, lambda: _command_of(name, place.found()), lambda: place.purpose)
    return CommandByName(name, lambda: _command_of(name, _imported(*_module(place))), partial(_docstring, place))


def made_group_by_name(name: str, place: LaboratoryCommand) -> CommandByName:
    """A group whose commands one function builds."""

    def make() -> TyperGroup:
        functions = place.found()()
        return _group(name, place.purpose, {each: _command_of(each, made) for each, made in functions.items()})

    return CommandByName(name, make, lambda: place.purpose)


def _group(name: str, purpose: str, commands: Mapping[str, TyperCommand]) -> TyperGroup:
    return TyperGroup(name=name, help=purpose, commands=dict(commands), no_args_is_help=True, rich_markup_mode=None)


def _command_of(name: str, function: Function) -> TyperCommand:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name, cls=PanelledCommand)(_imported(*_module("typed:spelled_out"))(function))
    made = get_command(app)
    assert isinstance(made, TyperCommand)
    return made


def _module(place: str) -> tuple[str, str]:
    """(module, name in it)."""
    module, _, name = place.partition(":")
    return f"{__package__}.{module}", name


def _imported(module: str, name: str) -> Any:  # noqa: ANN401 - a command, or a function that makes some
    if module not in sys.modules:
        # Imports leave no garbage: collecting it would take a fifth of their time.
        gc.disable()
        try:
            importlib.import_module(module)
        finally:
            gc.enable()
        gc.freeze()
    return vars(sys.modules[module])[name]


def _docstring(place: str) -> str:
    """A function's docstring, read without importing its module."""
    module, _, name = place.partition(":")
    body = ast.parse(Path(__file__).with_name(f"{module}.py").read_bytes()).body
    found = next(each for each in body if isinstance(each, ast.FunctionDef) and each.name == name)
    return cleandoc(ast.get_docstring(found) or "")


# By the name that is typed: the module in cli/, and the function whose docstring says what it does.
COMMANDS: Mapping[str, str | LaboratoryCommand] = {
    "recommend": "recommend:recommend",
    "compare": "compare:compare",
    "simulate": "serving:simulate",
    "whatif": "serving:whatif",
    "sweep": "sweeps:sweep",
    "collect": "sweeps:collect",
    "best": "sweeps:best",
    "tune": "sweeps:tune",
    "workload": "serving:workload",
    "cluster": "serving:cluster",
    "metrics": "serving:metrics",
    "timeline": "serving:timeline",
    "report": "serving:report",
    "observe": "serving:observe",
    "run": "models:run",
    "serve": "server:serve",
    "proxy": "server:proxy",
    "prompts": "models:prompts",
    "record": "models:record",
    "agree": "models:agree",
    "profile": "seconds:profile",
    "settings": "engine_settings:settings",
    "doctor": "doctor:doctor",
    "validate": "seconds:validate",
    "arena": LaboratoryCommand(
        "arena", "Play policies in cells of recording, ladder of costs and load, beside the best static chain of each."
    ),
}
TRACE = {
    "list": "recordings:list_recordings",
    "inspect": "recordings:inspect",
    "check": "recordings:check",
    "make": "recordings:make",
    "import": "trace_import:import_",
}
POLICY = {
    "list": "policy:list_policies",
    "show": "policy:show_policy",
    "check": "policy:check",
    "fit": "policy:fit",
}
POOL: Mapping[str, str | LaboratoryCommand] = {
    "show": "pool:show_members",
    "check": "pool:check",
    "fetch": "pool:fetch",
    "train": LaboratoryCommand(
        "pool train",
        "Train the pool of small models on this machine; a second call continues one that was cut short.",
    ),
    "distil": LaboratoryCommand(
        "pool distil",
        "Train drafters for a pool's target, and weights of its submodels; a second call continues one that was cut "
        "short.",
    ),
    "search-slim": "pool:search_slim",
    "forced": "pool:forced",
}
PLUGIN = {"new": "plugin:new"}
GROUPS: tuple[tuple[str, str, Mapping[str, str | LaboratoryCommand]], ...] = (
    ("trace", "Look at recordings, check them, import or make some.", TRACE),
    ("policy", "What policies there are, whether one keeps the contract, and fitting those that need it.", POLICY),
    ("pool", "Pools of real models.", POOL),
    ("plugin", "Packages of your own policies, routers, costs, workloads and importers.", PLUGIN),
)
EXPERIMENT = LaboratoryCommand("experiment", "Experiments on the shipped pool and recording, or on yours.")


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
    """The whole command line as one callable, with completion for shells."""
    completion_init()
    app = typer.Typer(
        name="paceline",
        cls=SectionedGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(paceline)
    found = get_group(app)
    for name, place in COMMANDS.items():
        found.add_command(function_by_name(name, place))
    for name, purpose, places in GROUPS:
        commands = {each: function_by_name(each, place) for each, place in places.items()}
        found.add_command(_group(name, purpose, commands))
    found.add_command(made_group_by_name(EXPERIMENT.words, EXPERIMENT))
    return found
