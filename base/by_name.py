"""What users name, with options: a thing of ours, of another package, of a file or of a module.

    NAME | NAME,key=value,... | NAME(key=value,...)
    path/to/file.py:Class, package.module:Class (with options like a NAME)

A constructor takes what it works on first, then its options, given as text and converted to the types of its
parameters.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.metadata import EntryPoint
from os.path import isfile
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast, get_args

from .errors import at, defined_at, is_foreign, known_are, pass_interrupt, said, told

Named = TypeVar("Named")


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """What installed packages register in a group, read again once `sys.path` or a folder on it has changed.

    Reading takes some 10 ms, and every run of a search asks.
    """
    return _entry_points(group, tuple(map(_state_of, sys.path)))


@lru_cache(maxsize=16)
def _entry_points(group: str, _folders: tuple[object, ...]) -> tuple[EntryPoint, ...]:
    return tuple(metadata.entry_points(group=group))


def _state_of(folder: str) -> tuple[object, ...]:
    try:
        found = Path(folder).stat()
    except OSError:
        return (folder,)
    return folder, found.st_dev, found.st_ino, found.st_mtime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedKind(Generic[Named]):
    """One kind of thing that users name, such as policies."""

    noun: str  # what one is called
    group: str  # of entry points, in which other packages register theirs
    methods: tuple[str, ...]  # that each must have
    example: str  # name of one in a file, for messages
    refused: type[ValueError]  # raised for what a package registered and cannot be used, where it is named
    # ours by name, which other packages cannot take; None: ours, and made elsewhere
    own: Callable[[], Mapping[str, Named | None]]
    first: str = ""  # what a constructor takes before its options, in words
    record: type | None = None  # what each must be an instance of, with a `name`; None: each is a class

    def registered(self) -> dict[str, list[EntryPoint]]:
        """What other packages registered, by name; nothing is loaded. A name with two entries stands for neither."""
        found = dict[str, list[EntryPoint]]()
        for entry in entry_points(group=self.group):
            found.setdefault(entry.name, []).append(entry)
        return found

    def names(self) -> list[str]:
        """Every known name, ours first; nothing is loaded."""
        return list(dict.fromkeys([*self.own(), *self.registered()]))

    def of_packages(self) -> dict[str, Named | ValueError]:
        """What other packages registered, by name: the thing itself, or why it cannot be used."""
        found = dict[str, Named | ValueError]()
        own = self.own()
        for name, entries in self.registered().items():
            try:
                if name in own:
                    places = " and ".join(entry.value for entry in entries)
                    raise self.refused(f"{self.noun} {name!r} is paceline's own: name {places} as module:Class")
                found[name] = self._loaded(entries)
            except self.refused as error:
                found[name] = error
        return found

    def is_foreign(self, name: str) -> bool:
        """Whether a name is one of another package, of a file or of a module, and none of ours."""
        return name not in self.own() and (names_path(name) or ":" in name or name in self.registered())

    def called(self, name: str) -> Named | None:
        """What a name stands for; None if it is unknown, or ours and made elsewhere.

        Raises ValueError for a file or module that is missing or raises, or lacks such a thing; or `refused`.
        """
        if names_path(name):
            path, colon, attribute = name.rpartition(":")
            if not colon:
                raise ValueError(f"say which {self._what} of the file, as in {name}:{self.example}")
            return self._in(self._load_file(Path(path)), attribute)
        if ":" in name:
            module, _, attribute = name.partition(":")
            if "=" in attribute and module in self.names():
                raise ValueError(f"options come after a comma, as in {module},{attribute}")
            return self._in(_import(module), attribute)
        own = self.own()
        if name in own:
            return own[name]
        entries = self.registered().get(name)
        return self._loaded(entries) if entries else None

    def parse(self, text: str) -> "Spec[Named]":
        """Read a name and its options.

        Raises `refused` for an unknown name, file, module, class or option, or a value of another kind than the option.
        """
        try:
            name, options = name_and_options(text)
            found = self.called(name)
            if found is None:
                raise ValueError(known_are(name, self.names(), CLASS_OF_FILE))
            maker = cast(Callable[..., object], found)
            values = read_options(maker, options)
            self.check_signature(maker, values)
        except self.refused:  # another package's, whose error has its name already
            raise
        except ValueError as error:
            raise self.refused(f"{self.noun} {said(text, repr)}: {error}") from error
        return Spec(kind=self, label=text, options=values, maker=maker)

    def check_signature(self, maker: Callable[..., object], options: Mapping[str, object]) -> None:
        """Raise ValueError where a constructor does not take these options after its first argument."""
        try:
            inspect.signature(maker).bind(None, **options)
        except TypeError as error:
            rule = f" (its constructor must take {self.first} first, then options){defined_at(maker)}"
            raise ValueError(f"{error}{rule if is_foreign(cast(type, maker)) else ''}") from None

    def made(self, label: str, maker: Callable[..., Any], first: object, options: Mapping[str, object]) -> Any:  # noqa: ANN401 - what it makes
        """What a constructor makes; raises `refused`, with `label`, for any exception of it."""
        try:
            return maker(first, **options)
        except ValueError as error:
            raise self.refused(f"{self.noun} {label!r}: {error}{at(error)}") from error
        except BaseException as error:  # the constructor may be foreign code
            pass_interrupt(error)
            raise self.refused(f"{self.noun} {label!r}: its constructor raised {told(error)}") from error

    @property
    def _what(self) -> str:
        return "class" if self.record is None else self.record.__name__

    @property
    def _must(self) -> str:
        return f"a class with {' and '.join(self.methods)}" if self.record is None else f"a {self._what}"

    def _is_one(self, found: object) -> bool:
        if self.record is not None:
            return isinstance(found, self.record)
        return inspect.isclass(found) and all(hasattr(found, method) for method in self.methods)

    def _loaded(self, entries: Sequence[EntryPoint]) -> Named:
        """What one package registered under a name; raises `refused` if it cannot be used, or several did."""
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
            why = " ".join(told(error).split())
            raise self.refused(f"{self.noun} {name!r}: loading {entries[0].value} raised {why}") from error
        if not self._is_one(found):
            raise self.refused(f"{self.noun} {name!r}: {entries[0].value} is not {self._must}")
        called = name if self.record is None else vars(found)["name"]
        if called != name:
            raise self.refused(f"{self.noun} {name!r}: the name of {entries[0].value} must be the same, got {called!r}")
        return cast(Named, found)

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
            relative = isinstance(error, ImportError) and "no known parent package" in str(error)
            how = "; a file imports its neighbours by their names, `from helper import ...`" if relative else ""
            raise ValueError(f"{path} raised {told(error)}{how}") from error
        return module

    def _in(self, module: ModuleType, attribute: str) -> Named:
        found = getattr(module, attribute, None)
        if not self._is_one(found):
            raise ValueError(f"{attribute!r} is not {self._must}{defined_at(found)}")
        return cast(Named, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec(Generic[Named]):
    """A thing that is named but not made."""

    kind: NamedKind[Named]
    label: str  # the text, which tables print
    options: Mapping[str, "PlainValue"]  # by parameter of the constructor, converted to its type
    maker: Callable[..., Any]

    def build(self, first: object) -> Any:  # noqa: ANN401 - what the constructor makes
        """Make one; `first` is the constructor's first argument. Raises as `NamedKind.made`."""
        return self.kind.made(self.label, self.maker, first, self.options)


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """Let a file import its neighbours, which are unloaded afterwards: another folder may have such names."""
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
        missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        how = "; install it, or set PYTHONPATH to the folder that it is in" if missing else ""
        raise ValueError(f"importing {module!r} raised {told(error)}{how}") from error


CLASS_OF_FILE = "file.py:Class or package.module:Class"
MOST_NESTED = 32  # things in one another; far beyond any that helps; reading and building recurse as deep
TOO_DEEP = f"policies can stand in one another {MOST_NESTED} deep at most"


def name_and_options(text: str) -> tuple[str, list[str]]:
    """(name, options as `key=value`) of a text; raises ValueError for parentheses that do not pair."""
    file, rest = file_first(text)
    name, *options = _parts(rest)
    if name.endswith(")"):
        name, _, inside = name[:-1].partition("(")
        options = [*(_parts(inside) if inside else ()), *options]
    return file + name, options


def file_first(text: str) -> tuple[str, str]:
    """(existing file, rest) of a text that begins with its name; ("", text) if there is none."""
    path, ends, _ = text.partition(".py")
    file = path + ends
    # Path.is_file raises where a name is too long.
    return (file, text[len(file) :]) if ends and isfile(file) else ("", text)  # noqa: PTH113


def _parts(text: str) -> list[str]:
    parts, opened, start = list[str](), list[int](), 0
    for place, char in enumerate(text):
        if char == "(":
            opened.append(place)
        elif char == ")" and not opened:
            raise ValueError(f"the ) after {text[max(0, place - 20) : place]!r} closes nothing")
        elif char == ")":
            opened.pop()
        if char == "," and not opened:
            parts.append(text[start:place])
            start = place + 1
        if len(opened) > MOST_NESTED:
            raise ValueError(TOO_DEEP)
    if opened:
        raise ValueError(f"the ( after {text[max(0, opened[-1] - 20) : opened[-1]]!r} is never closed")
    return [*parts, text[start:]]


PlainValue = bool | int | float | str
Part = TypeVar("Part")
PLAIN_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def options_of(maker: Callable[..., object], also: type | None = None) -> dict[str, inspect.Parameter]:
    """The options that can be given as text: a constructor's parameters after the first, plain values or `also`.

    One without a type has that of a plain default, else str.
    """
    parameters = list(inspect.signature(maker).parameters.values())[1:]
    named = [_typed(p) for p in parameters if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    return {parameter.name: parameter for parameter in named if kinds_of(maker, parameter, also)}


def _typed(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.annotation is not parameter.empty:
        return parameter
    kind = type(parameter.default)
    return parameter.replace(annotation=kind if kind in PLAIN_KINDS else str)


def any_key_of(maker: Callable[..., object], also: type | None) -> str | None:
    """The `name` in a constructor's `**name: also`; None if it has none."""
    for parameter in inspect.signature(maker).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD and also in kinds_of(maker, parameter, also):
            return parameter.name
    return None


def read_options(
    maker: Callable[..., object],
    options: Iterable[str],
    also: type | None = None,
    read_part: Callable[[str], Part] | None = None,
) -> dict[str, PlainValue | Part]:
    """The values of `options` (`key=value` each), converted to the types of `maker`'s parameters.

    `read_part` reads the text of a parameter of type `also`. Raises ValueError for a key that is unknown, empty or
    repeated, or a value of another kind.
    """
    parameters = options_of(maker, also)
    free = any_key_of(maker, also)
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
            raise ValueError(f"option {key!r} is repeated")
        kinds = kinds_of(maker, parameters[key], also) if key in parameters else (also,)
        if read_part is not None and also in kinds:
            values[key] = _read_part(key, value, read_part)
        else:
            values[key] = _convert(key, value, kinds)
    return values


def _read_part(key: str, text: str, read_part: Callable[[str], Part]) -> Part:
    if not text:
        raise ValueError(f"option {key!r} must be a policy, got ''")
    try:
        return read_part(text)
    except ValueError as error:
        raise ValueError(f"option {key!r}: {error}") from error


def kinds_of(maker: Callable[..., object], parameter: inspect.Parameter, also: type | None = None) -> tuple[type, ...]:
    """Of a parameter's type such as `int | None`, the kinds a text can be turned into."""
    hint = parameter.annotation
    if isinstance(hint, str):
        names = getattr(maker.__init__ if inspect.isclass(maker) else maker, "__globals__", {})
        try:
            hint = eval(hint, names)  # one by one: a type imported for checkers only hides its own parameter alone
        except Exception:  # noqa: BLE001 - foreign text; what cannot be evaluated here cannot be typed either
            return ()
    return tuple(kind for kind in (get_args(hint) or (hint,)) if kind in PLAIN_KINDS or (also and kind is also))


def _convert(key: str, value: str, kinds: Collection[type | None]) -> PlainValue:
    for kind in (bool, int, float):
        if kind not in kinds:
            continue
        try:
            return {"true": True, "false": False}[value] if kind is bool else kind(value)
        except (KeyError, ValueError):
            raise ValueError(f"option {key!r} must be {PLAIN_KINDS[kind]}, got {value!r}") from None
    return value
