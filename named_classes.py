"""Classes that users name: those of this package, those that others registered, or one of a file or a module."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
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
        refused: raised where a package registers a name that is taken, or what cannot be loaded.
    """

    noun: str
    group: str
    methods: tuple[str, ...]
    example: str
    refused: type[ValueError]

    def known(self, own: Mapping[str, Maker]) -> dict[str, Maker]:
        """Ours and those that other packages registered, by name; raises `refused`."""
        known = dict(own)
        for entry in entry_points(group=self.group):
            if entry.name in known:
                raise self.refused(f"{self.noun} name {entry.name!r} is registered twice (again by {entry.value})")
            known[entry.name] = self._loaded(entry)
        return known

    def called(self, name: str, own: Mapping[str, Maker]) -> Maker | None:
        """What a name stands for: a registered one, `path/to/file.py:Class` or `package.module:Class`; None if unknown.

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
        return self.known(own).get(name)

    def _loaded(self, entry: EntryPoint) -> Maker:
        """The class that a package registered."""
        try:
            return cast(Maker, entry.load())
        except BaseException as error:  # foreign code
            pass_interrupt(error)
            raise self.refused(f"{self.noun} {entry.name!r}: loading {entry.value} raised {told(error)}") from error

    def _load_file(self, path: Path) -> ModuleType:
        if not path.is_file():
            raise ValueError(f"no file {path}")
        spec = importlib.util.spec_from_file_location(f"paceline_{self.noun}_file_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their own module up there
        try:
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


def names_path(name: str) -> bool:
    """Whether a name reads as a file."""
    return ".py:" in name or name.endswith(".py")


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except BaseException as error:  # the user's module; whatever it raises is reported by name
        pass_interrupt(error)
        raise ValueError(f"importing {module!r} raised {told(error)}") from error
