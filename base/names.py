"""Names that a package imports when asked for, and the notation of answers that branch."""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from .errors import ArgumentError

MOST_PATHS = 10_000  # of one prompt: more is a typing error
MOST_DEPTH = 2**31 - 1
_BRANCH = re.compile(r"([0-9]{1,40})@([0-9]{1,40})")


class Branch(NamedTuple):
    """One depth at which each path so far becomes several."""

    num_paths: int  # that it becomes, >= 1; the path itself is the first of them
    depth: int  # tokens of the answer before that, counted from the prompt, >= 0


def branches_of(name: str, text: str) -> tuple[Branch, ...]:
    """Read the notation; raises ArgumentError with `name` if it cannot be read, or as `check_branches`."""
    found: list[Branch] = []
    for part in text.split("/"):
        given = _BRANCH.fullmatch(part)
        if given is None:
            raise ArgumentError(f"{name} must be N@DEPTH, others behind a slash, as 4@0/2@32, got {text!r}")
        found.append(Branch(int(given[1]), int(given[2])))
    check_branches(name, found)
    return tuple(found)


def check_branches(name: str, branches: Sequence[Branch]) -> None:
    """Raise ArgumentError, which names `name`, for no branch, no path, depths that do not ascend, or too many paths."""
    if not branches:
        raise ArgumentError(f"{name} must branch somewhere, as 4@0, got nothing")
    last = -1
    for branch in branches:
        if branch.num_paths < 1:
            raise ArgumentError(f"{name} must have at least 1 path at each depth, got {as_text([branch])}")
        if not last < branch.depth <= MOST_DEPTH:
            raise ArgumentError(f"{name} must have ascending depths in [0, {MOST_DEPTH:,}], got {as_text(branches)}")
        last = branch.depth
    paths = num_paths_of(branches)
    if paths > MOST_PATHS:
        raise ArgumentError(f"{name} must make at most {MOST_PATHS:,} paths of a prompt, got {paths:,}")


def num_paths_of(branches: Iterable[Branch]) -> int:
    """Answers to each prompt."""
    return prod(branch.num_paths for branch in branches)


def as_text(branches: Iterable[Branch]) -> str:
    """In the notation."""
    return "/".join(f"{branch.num_paths}@{branch.depth}" for branch in branches)


def imported_when_asked(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package with this `__name__`; `modules` has, by exported name, the relative module."""

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return vars(importlib.import_module(modules[name], package))[name]

    return get
