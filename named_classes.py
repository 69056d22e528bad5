"""Classes that users name: those of this package, those that others registered, or one of a file or a module."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar, cast

from .foreign_code import defined_at, pass_interrupt, told

Maker = TypeVar("Maker", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassKind(Generic[Maker]):
    """One kind of class that can be named, such as policies.

    Attributes:
        noun: what one is called.
        group: of entry points, in which other packages register theirs.
        methods: that each must have.
        example: name of a class, for messages.
        refused: raised for what a package registered and cannot be used, where it is named.
    """

    noun: str
    group: str
    methods: tuple[str, ...]
    example: str
    refused: type[ValueError]

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

        Raises:
            ValueError: a file or module that is not there or raises, or that has no such class; or `refused`.
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
    """Let a file import what lies beside it, as a script may.

    What it imported from there is forgotten again, so that a file of another folder with a neighbour of the same name
    gets its own.
    """
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        beside = {name for name in set(sys.modules) - before if "." not in name and _lies_in(sys.modules[name], folder)}
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in beside:
                del sys.modules[name]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    """Whether a module is a file, or a package, of this folder itself."""
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
