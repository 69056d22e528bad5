"""What a policy's constructor takes as text: its parameters after the pool, `key=value` each, and what they become.

A parameter of type `Policy` takes another policy, and a constructor with `**name: Policy` takes one under any key.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import TypeVar, get_args

from ..arguments import known_are
from ..decoding.policy import Policy

PolicyClass = Callable[..., Policy]
PlainValue = bool | int | float | str
Part = TypeVar("Part")
PLAIN_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def policy_options(cls: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The options that can be given as text: the constructor's parameters after the pool, values or policies."""
    parameters = list(inspect.signature(cls).parameters.values())[1:]
    named = [p for p in parameters if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    return {parameter.name: parameter for parameter in named if _kinds(cls, parameter)}


def any_key(cls: Callable[..., object]) -> str | None:
    """What a constructor with `**name: Policy` calls the policies it takes under any key; None if it takes none."""
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD and Policy in _kinds(cls, parameter):
            return parameter.name
    return None


def takes_policies(cls: Callable[..., object]) -> bool:
    """Whether it is made of other policies."""
    options = policy_options(cls).values()
    return any_key(cls) is not None or any(Policy in _kinds(cls, option) for option in options)


def read_options(
    cls: Callable[..., object], options: Iterable[str], read_part: Callable[[str], Part]
) -> dict[str, PlainValue | Part]:
    """The values that `options` give, each as its parameter wants it.

    Args:
        cls: what takes them.
        options: `key=value` each.
        read_part: of the text of another policy.

    Raises:
        ValueError: a key that is unknown, empty or there twice, or a value of another kind.
    """
    parameters = policy_options(cls)
    free = any_key(cls)
    values: dict[str, PlainValue | Part] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"option {option!r} must read key=value")
        if key not in parameters and (free is None or not key):
            others = () if free is None else (f"any name ({free})",)
            known = known_are(key, parameters, *others) if parameters or others else "it takes no options"
            raise ValueError(f"unknown option {key!r}; {known}")
        if key in values:
            raise ValueError(f"option {key!r} stands twice")
        kinds = _kinds(cls, parameters[key]) if key in parameters else (Policy,)
        values[key] = _read_part(key, value, read_part) if Policy in kinds else _convert(key, value, kinds)
    return values


def _read_part(key: str, text: str, read_part: Callable[[str], Part]) -> Part:
    if not text:
        raise ValueError(f"option {key!r} must be a policy, got ''")
    try:
        return read_part(text)
    except ValueError as error:
        raise ValueError(f"option {key!r}: {error}") from error


def _kinds(cls: Callable[..., object], parameter: inspect.Parameter) -> tuple[type, ...]:
    """Of a parameter's type such as `int | None`, the kinds a text can be turned into; str where it has no type."""
    hint = parameter.annotation
    if hint is inspect.Parameter.empty:
        return (str,)
    if isinstance(hint, str):
        names = getattr(cls.__init__ if inspect.isclass(cls) else cls, "__globals__", {})
        try:
            hint = eval(hint, names)  # one by one: a type imported for checkers only hides its own parameter alone
        except Exception:  # noqa: BLE001 - foreign text; what cannot be evaluated here, nobody can type either
            return ()
    return tuple(kind for kind in (get_args(hint) or (hint,)) if kind is Policy or kind in PLAIN_KINDS)


def _convert(key: str, value: str, kinds: tuple[type, ...]) -> PlainValue:
    for kind in (bool, int, float):
        if kind not in kinds:
            continue
        try:
            return {"true": True, "false": False}[value] if kind is bool else kind(value)
        except (KeyError, ValueError):
            raise ValueError(f"option {key!r} must be {PLAIN_KINDS[kind]}, got {value!r}") from None
    return value
