"""An option that is declared once: a field of a dataclass, with the words that the command line and Python show."""

import re
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from inspect import Parameter, cleandoc, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from .errors import check_least

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])
_OPT = "option"
# A secret: the command line takes the name of the environment variable that holds it.
Secret = Annotated[str, "of an environment variable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opt:
    """What an option has beside its name, type and default; see `opt`."""

    words: str
    flag: str
    metavar: str
    least: float | None
    most: float | None


def opt(
    default: Value,
    words: str,
    *,
    flag: str = "",
    metavar: str = "",
    least: float | None = None,
    most: float | None = None,
) -> Value:
    """An option: a field of a dataclass, or a parameter of a command, written in place of its default.

    Args:
        default: of the field.
        words: what it does; other options are named as the command line does, `--on`.
        flag: on the command line; "": the field's name. Only `--usage/--no-usage` turns off what is on.
        metavar: stands for the value in help; "": its type.
        least: the smallest number allowed; None: any.
        most: the largest number allowed; None: any.
    """
    said = Opt(words=words, flag=flag, metavar=metavar, least=least, most=most)
    return field(default=default, metadata={_OPT: said})


def key_opt(words: str) -> Secret | None:
    """The key of a server, as an option; by default there is none."""
    return opt(None, words, flag="--api-key-env", metavar="NAME")


def declared(record: Callable[..., object]) -> dict[str, tuple[Parameter, Opt | None]]:
    """The fields of a dataclass by name, each as a parameter, and its option, if it is one."""
    said = {one.name: one.metadata.get(_OPT) for one in fields(cast("type[DataclassInstance]", record))}
    return {name: (found, said[name]) for name, found in signature(record).parameters.items()}


def as_option(parameter: Parameter) -> tuple[Parameter, Opt] | None:
    """A parameter whose default is an `opt`, with the option's default, and the option; None: of any other."""
    said = parameter.default.metadata.get(_OPT) if isinstance(parameter.default, Field) else None
    return None if said is None else (parameter.replace(default=parameter.default.default), said)


def check_leasts(record: "DataclassInstance") -> None:
    """Raise ArgumentError for the first number that is less than its option's `least`."""
    for one in fields(record):
        said, value = one.metadata.get(_OPT), getattr(record, one.name)
        if said is not None and said.least is not None and value is not None:
            check_least(f"`{one.name}`", value, said.least)


def given(record: "DataclassInstance") -> dict[str, Any]:
    """The values that differ from their defaults, by name."""
    return {one.name: getattr(record, one.name) for one in fields(record) if getattr(record, one.name) != one.default}


def takes(record: Callable[..., object]) -> Callable[[Function], Function]:
    """Decorate a function whose `**options` are a record's fields: its signature and docstring show them."""

    def taking(function: Function) -> Function:
        called = signature(function)
        own = [one for one in called.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        names = {one.name for one in own}
        more = {name: said for name, said in declared(record).items() if name not in names}
        described = "\n".join(f"    {name}: {_in_python(said.words)}" for name, (_, said) in more.items() if said)
        function.__doc__ = f"{cleandoc(function.__doc__ or '')}\n\nKeywords:\n{described}\n"
        own += [field for field, _ in more.values()]
        vars(function)["__signature__"] = called.replace(parameters=own)
        return function

    return taking


def _in_python(words: str) -> str:
    """`words` with options written as keywords, `--on` as `on`."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: f"`{found[1].replace('-', '_')}`", words)
