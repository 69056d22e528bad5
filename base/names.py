"""Classes that users name, names that a package imports when asked for, and the notation of answers that branch."""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Generic, NamedTuple, TypeVar, cast

from .errors import ArgumentError, defined_at, pass_interrupt, told

Maker = TypeVar("Maker", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassKind(Generic[Maker]):
    """One kind of class that can be named, such as policies."""

    noun: str  # what one is called
    group: str  # of entry points, in which other packages register theirs
    methods: tuple[str, ...]  # that each must have
    example: str  # name of a class, for messages
    refused: type[ValueError]  # raised for what a package registered and cannot be used, where it is named

    def registered(self) -> dict[str, list[EntryPoint]]:
        """What other packages registered, by name; nothing is loaded. A name with two entries stands for neither."""
        found = dict[str, list[EntryPoint]]()
        for entry in entry_points(group=self.group):
            found.setdefault(entry.name, []).append(entry)
        return found

    def names(self, own: Mapping[str, Maker]) -> list[str]:
        """Every name that stands for something: ours first."""
        return list(dict.fromkeys(chain(own, self.registered())))

    def called(self, name: str, own: Mapping[str, Maker]) -> Maker | None:
        """What a name stands for: one of `own`, one of other packages, or of a file or module; None if unknown.

        Raises ValueError for a file or module that is not there or raises, or that has no such class; or `refused`.
        """
        if names_path(name):
            path, colon, attribute = name.rpartition(":")
            if not colon:
                raise ValueError(f"say which class of the file, as in {name}:{self.example}")
            return self._class_in(self._load_file(Path(path)), attribute)
        if ":" in name:
            module, _, attribute = name.partition(":")
            return self._class_in(_import(module), attribute)
        if name in own:
            return own[name]
        entries = self.registered().get(name)
        return self.loaded(entries) if entries else None

    def loaded(self, entries: Sequence[EntryPoint]) -> Maker:
        """The class that one package registered under a name; raises `refused` if it cannot be used, or several did."""
        name = entries[0].name
        if len(entries) > 1:
            places = " and ".join(entry.value for entry in entries)
            raise self.refused(
                f"{self.noun} {name!r} is registered twice, by {places}: name one of them as module:Class"
            )
        try:
            found = entries[0].load()
        except BaseException as error:  # foreign code
            pass_interrupt(error)
            raise self.refused(f"{self.noun} {name!r}: loading {entries[0].value} raised {told(error)}") from error
        if not all(hasattr(found, method) for method in self.methods):
            raise self.refused(f"{self.noun} {name!r}: {entries[0].value} has no {' and '.join(self.methods)}")
        return cast(Maker, found)

    def _load_file(self, path: Path) -> ModuleType:
        if not path.is_file():
            raise ValueError(f"no file {path}")
        spec = importlib.util.spec_from_file_location(f"paceline_{self.noun}_file_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their own module up there
        try:
            with _neighbours(path.resolve().parent):
                spec.loader.exec_module(module)
        except BaseException as error:  # the user's file; whatever it raises is reported by name
            pass_interrupt(error)
            raise ValueError(f"{path} raised {told(error)}") from error
        return module

    def _class_in(self, module: ModuleType, attribute: str) -> Maker:
        cls = getattr(module, attribute, None)
        if not inspect.isclass(cls) or not all(hasattr(cls, method) for method in self.methods):
            raise ValueError(f"{attribute!r} is not a class with {' and '.join(self.methods)}{defined_at(cls)}")
        return cast(Maker, cls)


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """Let a file import what lies beside it; forgotten afterwards, as another folder may have such names."""
    before, writes_none = set(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    # Python keeps compiled code by second and size: of two texts written in one second it would run the first.
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_none
        sys.path.remove(str(folder))
        beside = {name for name in set(sys.modules) - before if "." not in name and _lies_in(sys.modules[name], folder)}
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in beside:
                del sys.modules[name]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    if file is None:
        return any(Path(place).parent == folder for place in getattr(module, "__path__", ()))
    return folder in (Path(file).parent, Path(file).parent.parent)


def names_path(name: str) -> bool:
    """Whether a name reads as a file."""
    return ".py:" in name or name.endswith(".py")


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except BaseException as error:  # the user's module; whatever it raises is reported by name
        pass_interrupt(error)
        raise ValueError(f"importing {module!r} raised {told(error)}") from error


MOST_PATHS = 10_000  # of one prompt: more is a slip of the pen
MOST_DEPTH = 2**31 - 1
_BRANCH = re.compile(r"([0-9]{1,40})@([0-9]{1,40})")


class Branch(NamedTuple):
    """One depth at which each path so far becomes several."""

    num_paths: int  # that it becomes, >= 1; the path itself is the first of them
    depth: int  # tokens of the answer before that, counted from the prompt, >= 0


def branches_of(name: str, text: str) -> tuple[Branch, ...]:
    """Read the notation; raises ArgumentError, which calls it `name`, if it says nothing or as `check_branches`."""
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
