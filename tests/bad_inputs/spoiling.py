"""Ways to spoil a file: cut, of other bytes, of other types at each field."""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..traces.making import sign

Spoil = Callable[[Path], None]

DELETED = object()
ODD = {"odd": [1]}
# What may stand where a number, a text, a list or an object belongs; the first ones never can.
WRONG_TYPES: tuple[object, ...] = (ODD, [ODD], [[1.0]])
OTHERS: tuple[object, ...] = (None, True, 1.5, 1.0, -1, 0, 10**30, 1e308, "", "x", "\n", [], {}, [None], DELETED)
NUMBERS: tuple[object, ...] = (True, 1.5, "4", "x", [1.0], -1, -(10**30), None, "", {})


def whole_file(name: str) -> Iterator[tuple[str, Spoil]]:
    """Ways to spoil any file, none of which leaves it sound."""

    def with_bytes(make: Callable[[bytes], bytes]) -> Spoil:
        def spoil(folder: Path) -> None:
            path = folder / name
            path.write_bytes(make(path.read_bytes()))

        return spoil

    yield "is empty", with_bytes(lambda data: b"")
    yield "is zeros", with_bytes(lambda data: bytes(len(data)))
    yield "is cut at a third", with_bytes(lambda data: data[: len(data) // 3])
    yield "is cut at half", with_bytes(lambda data: data[: len(data) // 2])
    yield "is any bytes", with_bytes(lambda data: random.Random(0).randbytes(len(data)))
    yield "is UTF-16", with_bytes(lambda data: data.decode("latin-1").encode("utf-16"))
    yield "holds a byte that is no text", with_bytes(lambda data: data[:30] + b"\xff\xfe" + data[30:])
    yield "is brackets", with_bytes(lambda data: b"[" * 100_000)
    yield "is objects", with_bytes(lambda data: b'{"a":' * 50_000)
    yield "is a number", with_bytes(lambda data: b"9" * 10_000)
    yield "is a text", with_bytes(lambda data: b'"' + b"x" * 100_000 + b'"')
    yield "is null", with_bytes(lambda data: b"null")
    yield "is missing", lambda folder: (folder / name).unlink()
    yield "is a folder", lambda folder: _replaced(folder / name, Path.mkdir)
    yield "is a link to itself", lambda folder: _replaced(folder / name, lambda path: path.symlink_to(path.name))
    yield "is a link to nowhere", lambda folder: _replaced(folder / name, lambda path: path.symlink_to("nowhere"))


def _replaced(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


def flipped_bytes(folder_name: str, name: str, count: int) -> Iterator[tuple[str, Spoil]]:
    """Single bytes of a file of a recording, whose hash is then right again; it may be sound."""
    rng = random.Random(name)

    def flip(share: float, bit: int) -> Spoil:
        def spoil(folder: Path) -> None:
            path = folder / folder_name / name
            data = bytearray(path.read_bytes())
            data[int(share * len(data))] ^= 1 << bit
            path.write_bytes(data)
            sign(folder / folder_name, name)

        return spoil

    for number in range(count):
        yield f"has byte {number} flipped", flip(rng.random(), rng.randrange(8))


def json_fields(name: str, content: object, lines: bool = False) -> Iterator[tuple[str, Spoil, bool]]:
    """(what, spoil, whether it must be refused) for every field of a JSON file.

    Args:
        name: of the file.
        content: it holds.
        lines: whether the first line of several is meant.
    """
    for place in _places(content):
        found = _at(content, place)
        for value in (*WRONG_TYPES, *(NUMBERS if _is_number(found) else ()), *OTHERS):
            must = value in WRONG_TYPES and not isinstance(found, (list, dict)) and value is not DELETED
            must |= _is_number(found) and isinstance(found, int) and (value is True or value in (1.5, "x", [1.0]))
            shown = "gone" if value is DELETED else json.dumps(value)
            yield f"{'.'.join(map(str, place))} is {shown}", _setting(name, place, value, lines), must
        if place and isinstance(place[-1], str):
            yield f"{'.'.join(map(str, place))} stands twice", _doubling(name, place[-1]), False
    yield "has an unknown key", _setting(name, ("unknown",), 1, lines), False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _places(content: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every field; of lists the first entry."""
    if place:
        yield place
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _places(value, (*place, key))
    elif isinstance(content, list) and content:
        yield from _places(content[0], (*place, 0))


def _at(content: Any, place: tuple[str | int, ...]) -> Any:
    for part in place:
        content = content[part]
    return content


def _setting(name: str, place: tuple[str | int, ...], value: object, lines: bool) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / name
        first, *rest = path.read_text().splitlines() if lines else [path.read_text()]
        content = json.loads(first)
        inner = _at(content, place[:-1])
        if isinstance(inner, list) and isinstance(place[-1], str):
            inner.append({place[-1]: value})
        elif value is DELETED:
            del inner[place[-1]]
        else:
            inner[place[-1]] = value
        path.write_text("\n".join([json.dumps(content), *rest]))

    return spoil


def _doubling(name: str, key: str) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_text(path.read_text().replace(f'"{key}":', f'"{key}": 1, "{key}":', 1))

    return spoil


def toml_values(name: str, text: str) -> Iterator[tuple[str, Spoil]]:
    """Every value of a TOML file replaced; it may be sound."""
    values = ("4.0", "true", '"x"', '""', "-1", "0", "1e400", "nan", "[1.0]", "[]", "{}", "9" * 30, "1979-05-27", "")
    for number, found in enumerate(re.finditer(r"= *(.+)$", text, re.MULTILINE)):
        for value in values:
            start, end = found.span(1)
            yield f"value {number} is {value[:9]}", _with_text(name, text[:start] + value + text[end:])
    for line in (
        "[[members]]",
        "name = 3",
        "[a]\n[a]",
        "x = 1",
        "members = 1",
        f"y = {'[' * 50_000}",
        f"z{'.z' * 50_000} = 1",
    ):
        yield f"ends in {line[:12]}", _with_text(name, f"{text}\n{line}\n")


def _with_text(name: str, text: str) -> Spoil:
    return lambda folder: (folder / name).write_text(text) and None
