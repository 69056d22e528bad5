"""Every option of every command, given what it cannot be: one line, exit code 2, nothing written or touched."""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest
import typer
from paceline.cli.app import CommandByName, command

from ..cli.command_line import paceline
from .world import Case, faults, refresh

LONG = "x" * 100_000
POOL = ("--pool", "pool")
PROMPTS = ("--prompts", "prompts.jsonl", "--max-new-tokens", "3", "--limit", "1")
# A quick sound call of each command.
SOUND: dict[str, tuple[str, ...]] = {
    "compare": ("--trace", "small.trace", "--policy", "draft:2/target", "--seeds", "2"),
    "cluster": ("h100", "--trace", "small.trace"),
    "run": (*PROMPTS, *POOL),
    "record": ("new.trace", *PROMPTS, *POOL, "--reach", "2", "--run", "1", "--no-costs"),
    "agree": (*PROMPTS, *POOL, "--policy", "draft:2/target"),
    "settings": ("--engine", "vllm", "--drafter", "ngram", "--schedule", "1:4"),
    "timeline": ("served.run", "--out", "t.json"),
    "workload": ("load.jsonl",),
    "metrics": ("served.run",),
    "simulate": (
        *("--workload", "poisson:rate=9,requests=3", "--cluster", "h100", "--trace", "small.trace"),
        *("--policy", "draft:2/target"),
    ),
    "trace inspect": ("small.trace",),
    "trace check": ("small.trace",),
    "trace make": ("new.trace", "--requests", "2", "--tokens", "6"),
    "trace import": ("positions", "logs/pos.jsonl", "--out", "new.trace"),
    "policy list": (),
    "policy show": ("adaptive",),
    "trace list": (),
    "policy check": ("plain",),
    "policy fit": ("specdec++", "--trace", "small.trace", "--out", "head.json"),
    "pool show": ("pool",),
    "pool check": ("pool",),
    "pool search-slim": ("pool", "--trials", "1", "--limit", "1", "--max-new-tokens", "3", "--out", "found.toml"),
}
# Too long to be run: they are only given what must be refused before anything is done.
LONG_RUNS: dict[str, tuple[str, ...]] = {
    "pool train": ("new.pool", "--tiny"),
    "profile": (*POOL, "--prompts", "prompts.jsonl", "--out", "here.profile"),
    "observe": ("http://127.0.0.1:9", "--prompts", "prompts.jsonl", "--workload", "load.jsonl"),
    "validate": (*POOL, "--prompts", "prompts.jsonl", "--trace", "small.trace"),
}
EXPERIMENT = ("--limit", "1")
INTS = ("x", "", "1.5", "nan", "1e3", "true", "0x10", "[1]", "9" * 5000)
ODD_INTS = ("-1", "0", "9" * 19, "9" * 30, "-" + "9" * 30)
FLOATS = ("x", "", "nan", "inf", "-inf", "1e999", "true", "1,5")
ODD_FLOATS = ("-1", "0", "1e308", "1e-320", "-0.0")
TEXTS = ("", " ", "\n", "a\x07b", "é€\U0001f600", "\udcff", "../up", "/", "NAME=", "=1", "a=b=c", "a=nan", "a=9e999")
ODD_TEXTS = (*TEXTS, LONG, "[" * 1000, "%s%n", "target=1", "draft=1e400", "1..9", "draft:1..99999999999/target")
CHOICES = ("magic", "", "\n", LONG)
INPUTS = (
    "",
    "missing",
    "loop",
    "binary.bin",
    "empty.txt",
    "deep.json",
    "empty.folder",
    "empty.txt/in",
    "x" * 300,
    LONG,
)
OUTPUTS = ("", ".", "..", "/", "empty.txt/in", "loop", "small.trace/in", "rounds.trace/meta.json", "x" * 300, LONG)
FOLDERS_OUT = ("pool", "small.trace", "empty.txt")
FILES_OUT = ("pool", "no/such/folder/out")
WRITTEN = {"json", "out", "log", "figure", "page_path", "figures", "work"}
FOLDERS = {"out", "log", "figures", "work"}


def leaves(
    found: typer.core.TyperGroup | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Every command that does something, by its name."""
    group = command() if found is None else found
    for name, below in group.commands.items():
        made = below.make() if isinstance(below, CommandByName) else below
        if hasattr(made, "commands"):
            yield from leaves(made, (*path, name))
        else:
            yield " ".join((*path, name)), made


def option_cases() -> dict[str, list[Case]]:
    """Cases by command."""
    cases: dict[str, list[Case]] = {}
    for name, found in leaves():
        runs = name in SOUND
        if runs or name in LONG_RUNS:
            sound = SOUND[name] if runs else LONG_RUNS[name]
        elif name in {"experiment list", "experiment all"}:
            sound = () if name.endswith("list") else ("--figures", "figures", "--page", "page.md", *EXPERIMENT)
            runs = name.endswith("list")
        else:
            sound = EXPERIMENT
        cases[name] = list(_of_command(name, found, sound, runs=runs))
    return cases


def _of_command(name: str, found: typer.core.TyperCommand, sound: tuple[str, ...], *, runs: bool) -> Iterator[Case]:
    call = tuple(name.split())
    yield Case(name=f"{name} --nope", args=(*call, *sound, "--nope"))
    yield (
        Case(name=f"{name} with one more argument", args=(*call, *sound, "more", "and more"))
        if not _takes_many(found)
        else Case(name=f"{name} with a file that is missing", args=(*call, *sound, "missing"))
    )
    for parameter in found.params:
        for value, must in _values(parameter):
            if not (must or runs):
                continue
            args = _with(call, sound, found, parameter, value)
            shown = value if len(value) < 40 else f"{value[:5]!r} x {len(value)}"
            yield Case(name=f"{name} {parameter.opts[0]} {shown!r}", args=args, must=must)
        if not _is_argument(parameter) and not getattr(parameter, "is_flag", False):
            yield Case(name=f"{name} {parameter.opts[0]} at the end", args=(*call, *sound, parameter.opts[0]))


def _takes_many(found: typer.core.TyperCommand) -> bool:
    return any(_is_argument(parameter) and parameter.nargs == -1 for parameter in found.params)


def _is_argument(parameter: typer.core.TyperOption | typer.core.TyperArgument) -> bool:
    return parameter.param_type_name == "argument"


def _values(parameter: typer.core.TyperOption) -> Iterator[tuple[str, bool]]:
    """(value, whether it must be refused)."""
    kind = parameter.bare_type
    if getattr(parameter, "is_flag", False):
        yield "=maybe", True
    elif kind is int:
        yield from ((value, True) for value in INTS)
        least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
        yield from ((value, _beyond(value, least, most)) for value in ODD_INTS)
    elif kind is float:
        yield from ((value, True) for value in FLOATS)
        yield from ((value, False) for value in ODD_FLOATS)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield from ((value, True) for value in CHOICES)
    elif kind is Path:
        yield from ((value, True) for value in _paths(str(parameter.name)))
    else:
        yield from ((value, False) for value in ODD_TEXTS)


def _beyond(value: str, least: float | None, most: float | None) -> bool:
    return (least is not None and int(value) < least) or (most is not None and int(value) > most)


def _paths(name: str) -> tuple[str, ...]:
    if name not in WRITTEN:
        return INPUTS
    return (*OUTPUTS, *(FOLDERS_OUT if name in FOLDERS else FILES_OUT))


def _with(
    call: tuple[str, ...],
    sound: tuple[str, ...],
    found: typer.core.TyperCommand,
    parameter: typer.core.TyperOption,
    value: str,
) -> tuple[str, ...]:
    """The sound call with another value."""
    if _is_argument(parameter):
        place = [each.name for each in found.params if _is_argument(each)].index(parameter.name)
        return (*call, *sound[:place], value, *sound[place + 1 :])
    option = parameter.opts[0]
    if value == "=maybe":
        return (*call, *sound, f"{option}=maybe")
    kept = list(sound)
    if option in kept:
        place = kept.index(option)
        del kept[place : place + 2]
    return (*call, *kept, option, value)


CASES = option_cases()


def test_there_are_a_thousand():
    assert sum(map(len, CASES.values())) >= 1000
    assert set(CASES) == {name for name, _ in leaves()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SOUND if name in CASES])
def test_the_sound_calls_are_sound(world, work, name):
    """What is refused is refused for what was spoiled."""
    refresh(world, work)
    assert paceline(*name.split(), *SOUND[name]).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_bad_option_is_refused(world, work, name):
    assert faults(CASES[name], world, work) == []


def test_long_runs_are_commands():
    assert set(LONG_RUNS) <= set(CASES)
