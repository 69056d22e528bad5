"""TOML files of users: read and checked in one place, rejected in one line with file, field, rule and value."""

import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from .errors import known_are
from .files import nested_too_deep, read_bounded

# tomllib reads any depth, with memory that grows as its square. The pattern passes over no part twice.
_DEEP_KEY = re.compile(r"""(?:(?:(?<![\w-])[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""")
Content = TypeVar("Content", bound=BaseModel)


class TomlFileError(ValueError):
    """One thing that is wrong with a file or with what it points to."""

    def __init__(self, path: Path | str, field: str, rule: str, value: object, *, told: bool = False) -> None:
        """State that `field` of the file at `path` breaks `rule` by being `value`; `told`: the rule has the value."""
        super().__init__(f"{path}: {field} {rule}" if told else f"{path}: {field} {rule}, got {value!r}")
        self.path = path
        self.field = field
        self.rule = rule
        self.value = value
        self.told = told


def read_toml(file: Path, kind: str, refused: type[TomlFileError]) -> dict[str, Any]:
    """The values of a file; raises `refused`, which calls it a `kind`, if it is no TOML or cannot be read."""
    try:
        return decode_toml(read_bounded(file).decode("utf-8"))
    except OSError as error:
        raise refused(file, kind, "must be readable", error.strerror) from None
    except ValueError as error:  # of UTF-8, of TOML, and of too much
        raise refused(file, kind, "must be TOML in UTF-8", str(error)) from None


def decode_toml(text: str) -> dict[str, Any]:
    """The values of a text; raises ValueError, one line, for what is no TOML or nests deeper than 100 levels."""
    deep = ValueError("tables or lists nested too deep")
    if _DEEP_KEY.search(text):
        raise deep
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise deep from None
    if nested_too_deep(values):
        raise deep
    return values


def checked_toml(
    file: Path | str, values: dict[str, Any], content: type[Content], refused: type[TomlFileError]
) -> Content:
    """The checked content of a file; raises `refused` for the first value that breaks a rule."""
    try:
        return content.model_validate(values)
    except ValidationError as error:
        raise refused(file, *first_fault(error, content)) from error


def _table_in(kind: object) -> type[BaseModel] | None:
    """The table in the type of a field, such as `dict[str, Table]`; None without one."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for part in get_args(kind) if (found := _table_in(part)) is not None), None)


def first_fault(error: ValidationError, content: type[BaseModel] | None = None) -> tuple[str, str, Any]:
    """Field (`sections[0].title`), rule and value of the first thing that is wrong in a file.

    `content` is what the file should hold, for the keys that are known.
    """
    first = error.errors()[0]
    field = ""
    for part in first["loc"]:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    if first["type"] == "extra_forbidden":
        *within, key = first["loc"]
        for part in within:  # names of tables and places in lists are no fields
            field_there = None if content is None else content.model_fields.get(str(part))
            content = content if field_there is None else _table_in(field_there.annotation)
        known = "" if content is None else f" ({known_are(key, content.model_fields)})"
        return field, f"is not a known key{known}", first["input"]
    if first["type"] == "missing":
        return field, "must be given", None
    rule = first["msg"].removeprefix("Value error, ")
    return field, rule[0].lower() + rule[1:], first["input"]
