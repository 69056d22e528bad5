"""Options of a policy as a user types them: `key=value`, by the constructor's parameters behind the pool.

A parameter of type `Policy` takes the text of another policy, in which `+` stands for `,` (and `++` for `+`, so that
policies nest to any depth): `guarded,policy=two-level+most=8`. A constructor with `**name: Policy` takes any key.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

from ..decoding.contract import Policy

PolicyClass = Callable[..., Policy]
PLAIN_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


class PolicySpecError(ValueError):
    """A policy text that names nothing, or options it does not take; one line."""


def policy_options(cls: PolicyClass) -> dict[str, inspect.Parameter]:
    """The options that can be given as text: the constructor's parameters behind the pool, values or policies."""
    parameters = list(inspect.signature(cls).parameters.values())[1:]
    named = [p for p in parameters if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    return {parameter.name: parameter for parameter in named if _kinds(cls, parameter)}


def any_key(cls: PolicyClass) -> str | None:
    """What a constructor with `**name: Policy` calls the policies it takes under any key; None if it takes none."""
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD and Policy in _kinds(cls, parameter):
            return parameter.name
    return None


def takes_policies(cls: PolicyClass) -> bool:
    """Whether it is made of other policies."""
    options = policy_options(cls).values()
    return any_key(cls) is not None or any(Policy in _kinds(cls, option) for option in options)


def parse_options(
    text: str, cls: PolicyClass, options: list[str], make_part: Callable[[str], Policy]
) -> Mapping[str, Any]:
    """The values that `options` give, each as its parameter wants it.

    Args:
        text: of the whole policy, for messages.
        cls: what takes them.
        options: `key=value` each.
        make_part: builds the policy that a nested text names.

    Raises:
        PolicySpecError: a key that is unknown, empty or there twice, or a value of another kind.
    """
    parameters = policy_options(cls)
    free = any_key(cls)
    values: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise PolicySpecError(f"policy {text!r}: option {option!r} must read key=value")
        if key not in parameters and (free is None or not key):
            takes = ", ".join([*parameters, *([] if free is None else [f"any name ({free})"])]) or "no options"
            raise PolicySpecError(f"policy {text!r}: unknown option {key!r}; it takes {takes}")
        if key in values:
            raise PolicySpecError(f"policy {text!r}: option {key!r} stands twice")
        if key not in parameters or Policy in _kinds(cls, parameters[key]):
            values[key] = _part(text, key, value, make_part)
        else:
            values[key] = _convert(text, key, value, _kinds(cls, parameters[key]))
    return values


def _part(text: str, key: str, value: str, make_part: Callable[[str], Policy]) -> Policy:
    nested = _unnested(value)
    if not nested:
        raise PolicySpecError(f"policy {text!r}: option {key!r} must be a policy, got ''")
    try:
        return make_part(nested)
    except PolicySpecError as error:
        raise PolicySpecError(f"policy {text!r}: option {key!r}: {error}") from error


def _unnested(value: str) -> str:
    """A lone `+` is a comma; of more of them in a row one is taken off."""
    return re.sub(r"\++", lambda run: run[0][1:] or ",", value)


def _kinds(cls: PolicyClass, parameter: inspect.Parameter) -> tuple[type, ...]:
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


def _convert(text: str, key: str, value: str, kinds: tuple[type, ...]) -> bool | int | float | str:
    for kind in (bool, int, float):
        if kind not in kinds:
            continue
        try:
            return {"true": True, "false": False}[value] if kind is bool else kind(value)
        except (KeyError, ValueError):
            raise PolicySpecError(
                f"policy {text!r}: option {key!r} must be {PLAIN_KINDS[kind]}, got {value!r}"
            ) from None
    return value
