"""Every input file, spoiled in every way: one line that names what is wrong, and nothing written or touched."""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paceline.traces.importers import format_names

from ..traces.making import sign
from .world import Case, faults

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
    """(what, spoil, whether it must be refused) for every field of a JSON file."""
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


RUN = ("run", "--prompts", "prompts.jsonl", "--pool", "pool", "--max-new-tokens", "2", "--limit", "1")
# Files, and calls that read them.
READ = {
    "small.trace/meta.json": (("trace", "check", "small.trace"), ("compare", "--trace", "small.trace")),
    "small.trace/nodes.parquet": (("trace", "inspect", "small.trace"), ("compare", "--trace", "small.trace")),
    "small.trace/requests.parquet": (("trace", "check", "small.trace"),),
    "rounds.trace/meta.json": (("trace", "check", "rounds.trace"), ("compare", "--trace", "rounds.trace")),
    "rounds.trace/rounds.parquet": (("trace", "inspect", "rounds.trace"),),
    "rounds.trace/requests.parquet": (("trace", "check", "rounds.trace"),),
    "costs.json": (("compare", "--trace", "small.trace", "--policy", "plain", "--cost", "./costs.json"),),
    "cluster.toml": (("cluster", "cluster.toml", "--trace", "small.trace"),),
    "models.json": (
        ("trace", "import", "positions", "logs/pos.jsonl", "--out", "new.trace", "--models", "models.json"),
    ),
    "load.jsonl": (("workload", "load.jsonl"),),
    "served.run/meta.json": (("metrics", "served.run"),),
    "served.run/requests.parquet": (("metrics", "served.run"),),
    "served.run/series.parquet": (("metrics", "served.run"),),
    "served.run/gaps.parquet": (("metrics", "served.run"),),
    "prompts.jsonl": (RUN, ("record", "new.trace", *RUN[1:], "--no-costs"), ("agree", *RUN[1:])),
    "pool/pool.toml": (("pool", "show", "pool"), ("trace", "check", "small.trace", "--pool", "pool")),
    "pool/tokenizer.json": (("pool", "show", "pool"), RUN),
    "pool/target/config.json": (("pool", "show", "pool"),),
    "pool/target/model.safetensors": (("pool", "show", "pool"), RUN),
    "my_policy.py": (
        ("compare", "--trace", "small.trace", "--policy", "my_policy.py:Mine"),
        ("policy", "check", "my_policy.py:Mine"),
    ),
}
# What is no longer bad: text that Python or a tokenizer takes, and an empty file where nothing has to be said.
TAKEN = {"is a number", "is null", "is a text"}
# Fields of logs that every format which has them reads; others may be beside the point, or a text as well as a number.
READ_OF_LOGS = {"accept_lengths", "accept_length", "draft_length"}
# Of fields that may be sound all the same, one in so many.
THINNED = {"pool/pool.toml": 3, "pool/target/config.json": 4}
THINNED_LOGS = 4


def file_cases(world: Path, logs: dict[str, list[Path]]) -> dict[str, list[Case]]:
    """Cases by file."""
    cases = {name: list(_raw(name, calls)) for name, calls in READ.items()}
    for name in format_names():
        for path in logs[name]:
            call = ("trace", "import", name, *map(str, logs[name]), "--out", "new.trace")
            fields = _fields(world, str(path), call, lines=True) if _holds_json(world / path) else []
            cases[str(path)] = [*_raw(str(path), (call,)), *_thinned(fields, THINNED_LOGS)]
    for folder, files in {"small": ("nodes", "requests"), "rounds": ("rounds", "requests")}.items():
        for name in files:
            flips = flipped_bytes(f"{folder}.trace", f"{name}.parquet", 40)
            cases[f"{folder}.trace/{name}.parquet"] += _may("trace check", ("trace", "check", f"{folder}.trace"), flips)
    for name in (
        "small.trace/meta.json",
        "rounds.trace/meta.json",
        "served.run/meta.json",
        "costs.json",
        "models.json",
    ):
        cases[name] += _fields(world, name, READ[name][0])
    config = "pool/target/config.json"
    cases[config] += [replace(case, must=False) for case in _fields(world, config, READ[config][0])]
    cases["load.jsonl"] += _fields(world, "load.jsonl", ("workload", "load.jsonl"), lines=True)
    cases["prompts.jsonl"] += _fields(world, "prompts.jsonl", RUN, lines=True)
    for name, call in (("cluster.toml", READ["cluster.toml"][0]), ("pool/pool.toml", READ["pool/pool.toml"][1])):
        cases[name] += _may(name, call, toml_values(name, (world / name).read_text()))
    return {name: _thinned(found, THINNED.get(name, 1)) for name, found in cases.items()}


def _thinned(cases: list[Case], step: int) -> list[Case]:
    """All that must be refused, and one in `step` of the others."""
    others = [case for case in cases if not case.must][::step]
    return [*(case for case in cases if case.must), *others]


def _raw(name: str, calls: tuple[tuple[str, ...], ...]) -> Iterator[Case]:
    for call in calls:
        for what, spoil in whole_file(name):
            must = not (what in TAKEN and name.endswith(".py"))
            must &= not (what == "holds a byte that is no text" and _is_server_log(name))
            yield Case(name=f"{' '.join(call[:2])}: {name} {what}", args=call, spoil=spoil, must=must)


def _fields(world: Path, name: str, call: tuple[str, ...], *, lines: bool = False) -> list[Case]:
    text = (world / name).read_text()
    content = json.loads(text.splitlines()[0] if lines else text)
    return [
        Case(
            name=f"{' '.join(call[:2])}: {name}: {what}", args=call, spoil=spoil, must=must and not _beside(name, what)
        )
        for what, spoil, must in json_fields(name, content, lines)
    ]


def _is_server_log(name: str) -> bool:
    """Lines of a server, most of which nobody reads: stray bytes there are no fault of the few that count."""
    return name.startswith("logs/") and not name.endswith((".json", ".jsonl"))


def _holds_json(path: Path) -> bool:
    """Whether the first line is a value by itself: some formats are text of other kinds."""
    try:
        json.loads(path.read_text().partition("\n")[0])
    except ValueError:
        return False
    return True


def _beside(name: str, what: str) -> bool:
    return name.startswith("logs/") and not READ_OF_LOGS & set(what.split(" ")[0].split("."))


FILES = [*READ, "logs"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_spoiled_file_is_refused(world, logs, work, name):
    cases = file_cases(world, logs)
    chosen = [case for file, found in cases.items() if file == name or file.startswith(f"{name}/") for case in found]
    assert len(chosen) >= 16
    assert faults(chosen, world, work) == []


def _may(name: str, call: tuple[str, ...], spoils: Iterator[tuple[str, Spoil]]) -> list[Case]:
    """Cases that may be sound all the same."""
    return [Case(name=f"{name}: {what}", args=call, spoil=spoil, must=False) for what, spoil in spoils]
