"""From what a user types to a policy.

`NAME`, `NAME,key=value,...`, a bare chain such as `draft:4/mid:8/target`, `my_policy.py:MyPolicy` and
`package.module:MyPolicy`; the last two take options behind a comma too.
"""

import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast, get_args

from .adaptive import Adaptive
from .chain import Chain
from .confident import Confident
from .contract import Policy
from .ngram import Ngram
from .plain import Plain
from .pool import Pool

PolicyClass = Callable[..., Policy]


class PolicySpecError(ValueError):
    """A policy text that names nothing, or options it does not take; one line."""


def own_policies() -> Mapping[str, PolicyClass]:
    """The policies of this package by name."""
    return {"plain": Plain, "chain": Chain, "adaptive": Adaptive, "confident": Confident, "ngram": Ngram}


def known_policies() -> Mapping[str, PolicyClass]:
    """Ours and those other packages register in the entry-point group `paceline.policies`.

    Raises:
        PolicySpecError: a package registers a name that is taken.
    """
    known = dict(own_policies())
    for entry in entry_points(group="paceline.policies"):
        if entry.name in known:
            raise PolicySpecError(f"policy name {entry.name!r} is registered twice (again by {entry.value})")
        known[entry.name] = entry.load()
    return known


def make_policy(text: str, pool: Pool) -> Policy:
    """Build the policy that `text` names for `pool`.

    Raises:
        PolicySpecError: unknown name, file, class or option; an option's value out of range; a chain that is wrong.
    """
    name, *options = text.split(",")
    if not _is_path(name) and _is_chain(name, pool):
        if options:
            raise PolicySpecError(f"policy {text!r}: a bare chain takes no options; use chain,spec={name},...")
        return _build(text, Chain, pool, {"spec": name})
    cls = _find(text, name)
    return _build(text, cls, pool, _parse_options(text, cls, options))


def policy_options(cls: PolicyClass) -> dict[str, inspect.Parameter]:
    """The options that can be given as text: the constructor's parameters behind the pool that are plain values."""
    parameters = list(inspect.signature(cls).parameters.values())[1:]
    named = [p for p in parameters if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    return {parameter.name: parameter for parameter in named if _plain_kinds(cls, parameter)}


def _plain_kinds(cls: PolicyClass, parameter: inspect.Parameter) -> tuple[type, ...]:
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
    return tuple(kind for kind in (get_args(hint) or (hint,)) if kind in {bool, int, float, str})


def _is_chain(name: str, pool: Pool) -> bool:
    """Whether a text reads as a chain: `draft:4/target`, `target`, or `draft:4`, which lacks its end."""
    member, _, window = name.partition(":")
    return "/" in name or name == pool.target or (member in pool.names and window.isdigit())


def _is_path(name: str) -> bool:
    return ".py:" in name or name.endswith(".py")


def _find(text: str, name: str) -> PolicyClass:
    if _is_path(name):
        path, colon, attribute = name.rpartition(":")
        if not colon:
            raise PolicySpecError(f"policy {text!r}: say which class of the file, as in {name}:MyPolicy")
        return _attribute(text, _load_file(text, Path(path)), attribute)
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found = importlib.import_module(module)
        except (Exception, SystemExit) as error:  # the user's module; whatever it raises is reported by name
            raise PolicySpecError(f"policy {text!r}: importing {module!r} raised {_told(error)}") from error
        return _attribute(text, found, attribute)
    known = known_policies()
    if name not in known:
        raise PolicySpecError(
            f"unknown policy {name!r}: known are {', '.join(known)}, a chain such as draft:4/target, "
            "file.py:Class or package.module:Class"
        )
    return known[name]


def _load_file(text: str, path: Path) -> types.ModuleType:
    if not path.is_file():
        raise PolicySpecError(f"policy {text!r}: no file {path}")
    spec = importlib.util.spec_from_file_location(f"paceline_policy_file_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's file; whatever it raises is reported by name
        raise PolicySpecError(f"policy {text!r}: {path} raised {_told(error)}") from error
    return module


def _told(error: BaseException) -> str:
    """An error of foreign code in words."""
    return f"{type(error).__name__}: {error}"


def _attribute(text: str, module: types.ModuleType, attribute: str) -> PolicyClass:
    cls = getattr(module, attribute, None)
    if not inspect.isclass(cls) or not hasattr(cls, "decide") or not hasattr(cls, "learn"):
        raise PolicySpecError(f"policy {text!r}: {attribute!r} is not a class with decide and learn")
    return cast(PolicyClass, cls)


def _parse_options(text: str, cls: PolicyClass, options: list[str]) -> dict[str, Any]:
    parameters = policy_options(cls)
    values: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise PolicySpecError(f"policy {text!r}: option {option!r} must read key=value")
        if key not in parameters:
            takes = ", ".join(parameters) or "no options"
            raise PolicySpecError(f"policy {text!r}: unknown option {key!r}; it takes {takes}")
        if key in values:
            raise PolicySpecError(f"policy {text!r}: option {key!r} stands twice")
        values[key] = _convert(text, key, value, _plain_kinds(cls, parameters[key]))
    return values


def _convert(text: str, key: str, value: str, kinds: tuple[type, ...]) -> bool | int | float | str:
    for kind in (bool, int, float):
        if kind not in kinds:
            continue
        try:
            return {"true": True, "false": False}[value] if kind is bool else kind(value)
        except (KeyError, ValueError):
            rule = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
            raise PolicySpecError(f"policy {text!r}: option {key!r} must be {rule}, got {value!r}") from None
    return value


def _build(text: str, cls: PolicyClass, pool: Pool, options: dict[str, Any]) -> Policy:
    try:
        inspect.signature(cls).bind(pool, **options)
    except TypeError as error:
        needs = "its constructor must take the pool first, then options"
        raise PolicySpecError(f"policy {text!r}: {error} ({needs})") from None
    try:
        return cls(pool, **options)
    except ValueError as error:
        raise PolicySpecError(f"policy {text!r}: {error}") from error
    except (Exception, SystemExit) as error:  # the constructor may be foreign code
        raise PolicySpecError(f"policy {text!r}: its constructor raised {_told(error)}") from error
