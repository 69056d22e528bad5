"""Commands that are known by name: the module of one is imported when the command is called.

Together they import all of paceline, which every command, `--help` and `--version` would wait for.
"""

import ast
import gc
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from .options.records import spelled_out

Function = Callable[..., None]


class CommandByName(TyperCommand):
    """A command or group that is made when it is called; until then it has a name and a purpose, and no options.

    Args:
        name: as it is typed.
        make: the command or group itself.
        purpose: what it does; asked for by lists of commands only.
    """

    def __init__(self, name: str, make: Callable[[], Any], purpose: Callable[[], str]) -> None:
        super().__init__(name, rich_markup_mode=None)
        self.make = make
        self._purpose = purpose

    def make_context(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as typer's own, whose types are private
        """Parse the arguments; what runs is the command itself, and not this one."""
        return self.make().make_context(*args, **options)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Its purpose, cut to so many characters."""
        return TyperCommand(self.name, help=self._purpose()).get_short_help_str(limit)


def function_by_name(name: str, place: str) -> CommandByName:
    """The command of a function; `place` is its module in `commands/` and its name, as in `serving.cluster:cluster`."""
    return CommandByName(name, lambda: _command_of(name, _imported(place)), partial(_docstring, place))


def group_by_name(name: str, purpose: str, places: Mapping[str, str]) -> TyperGroup:
    """A group of functions, by the names of their commands."""
    return _group(name, purpose, {each: function_by_name(each, place) for each, place in places.items()})


def made_group_by_name(name: str, purpose: str, place: str) -> CommandByName:
    """A group whose commands one function makes; `place` is where that function is."""

    def make() -> TyperGroup:
        functions = _imported(place)()
        return _group(name, purpose, {each: _command_of(each, function) for each, function in functions.items()})

    return CommandByName(name, make, lambda: purpose)


def _group(name: str, purpose: str, commands: Mapping[str, TyperCommand]) -> TyperGroup:
    return TyperGroup(name=name, help=purpose, commands=dict(commands), no_args_is_help=True, rich_markup_mode=None)


def _command_of(name: str, function: Function) -> TyperCommand:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name)(spelled_out(function))
    made = get_command(app)
    assert isinstance(made, TyperCommand)
    return made


def _module(place: str) -> tuple[str, str]:
    """(module, name in it)."""
    module, _, name = place.partition(":")
    return f"{__package__}.commands.{module}", name


def _imported(place: str) -> Any:  # noqa: ANN401 - a command, or a function that makes some
    module, name = _module(place)
    if module not in sys.modules:
        # Imports leave no garbage, and what they make stays: looking for some takes a fifth of their time.
        gc.disable()
        try:
            importlib.import_module(module)
        finally:
            gc.enable()
        gc.freeze()
    return vars(sys.modules[module])[name]


def _docstring(place: str) -> str:
    """Of a function whose module is not imported for it."""
    module, name = _module(place)
    spec = find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    body = ast.parse(Path(spec.origin).read_bytes()).body
    found = next(each for each in body if isinstance(each, ast.FunctionDef) and each.name == name)
    return cleandoc(ast.get_docstring(found) or "")
