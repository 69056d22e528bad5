"""Policies of other people: a class in a file, or in a module that can be imported."""

import importlib
import importlib.util
import inspect
import sys
import types
from pathlib import Path
from typing import cast

from ..decoding.foreign_code import defined_at, pass_interrupt, told
from .policy_options import PolicyClass, PolicySpecError


def names_path(name: str) -> bool:
    """Whether a name reads as a file."""
    return ".py:" in name or name.endswith(".py")


def class_of_file(text: str, name: str) -> PolicyClass:
    """The class that `path/to/file.py:Class` names; raises PolicySpecError, which tells the whole `text`."""
    path, colon, attribute = name.rpartition(":")
    if not colon:
        raise PolicySpecError(f"policy {text!r}: say which class of the file, as in {name}:MyPolicy")
    return _attribute(text, _load_file(text, Path(path)), attribute)


def class_of_module(text: str, name: str) -> PolicyClass:
    """The class that `package.module:Class` names; raises PolicySpecError, which tells the whole `text`."""
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except BaseException as error:  # the user's module; whatever it raises is reported by name
        pass_interrupt(error)
        raise PolicySpecError(f"policy {text!r}: importing {module!r} raised {told(error)}") from error
    return _attribute(text, found, attribute)


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
    except BaseException as error:  # the user's file; whatever it raises is reported by name
        pass_interrupt(error)
        raise PolicySpecError(f"policy {text!r}: {path} raised {told(error)}") from error
    return module


def _attribute(text: str, module: types.ModuleType, attribute: str) -> PolicyClass:
    cls = getattr(module, attribute, None)
    if not inspect.isclass(cls) or not hasattr(cls, "decide") or not hasattr(cls, "learn"):
        raise PolicySpecError(f"policy {text!r}: {attribute!r} is not a class with decide and learn{defined_at(cls)}")
    return cast(PolicyClass, cls)
