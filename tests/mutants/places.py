"""Where a mutant's line stands in the present tree, whichever file its function was moved to.

A line is known by the qualified name of its function, its text without indentation, and its number among the lines of
that function with the same text. The file it was drawn from is a hint only.
"""

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {"tests", "examples", "benchmarks", "docs", "build"}  # of the package
DRAWN = Path(__file__).with_name("mutants.jsonl")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Mutant(NamedTuple):
    """One line that was changed; `occurrence` counts from 0, `line` and `new` are without indentation."""

    kind: str
    file: str
    function: str
    line: str
    occurrence: int
    new: str

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is known by, in whichever file."""
        return self.function, self.line, self.occurrence


class Place(NamedTuple):
    """A line of a function: its file from the root, and its number there from 1."""

    file: str
    number: int


@cache
def sources() -> dict[str, str]:
    """Text of every module of the package by its path from the root."""
    paths = [(path, path.relative_to(ROOT)) for path in sorted(ROOT.rglob("*.py"))]
    return {
        place.as_posix(): path.read_text(encoding="utf-8")
        for path, place in paths
        if place.parts[0] not in OUTSIDE and not any(part.startswith(".") for part in place.parts)
    }


def functions(node: ast.AST, above: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its qualified name, outer ones before those inside them."""
    for child in ast.iter_child_nodes(node):
        name = f"{above}.{child.name}".lstrip(".") if isinstance(child, (*FUNCTIONS, ast.ClassDef)) else above
        if isinstance(child, FUNCTIONS):
            yield name, child
        yield from functions(child, name)


def lines_of(text: str) -> Iterator[tuple[tuple[str, str, int], int]]:
    """(function, line, occurrence) and number of each line of every function; of nested ones the innermost counts."""
    lines = text.split("\n")
    owners = {}
    for name, function in functions(ast.parse(text)):
        for number in range(function.body[0].lineno, function.end_lineno + 1):
            owners[number] = name
    seen = defaultdict(int)
    for number, name in sorted(owners.items()):
        line = lines[number - 1].strip()
        yield (name, line, seen[name, line]), number
        seen[name, line] += 1


@cache
def places() -> dict[tuple[str, str, int], list[Place]]:
    """Every line of every function of the package by what it is known by."""
    found = defaultdict(list)
    for file, text in sources().items():
        for key, number in lines_of(text):
            found[key].append(Place(file, number))
    return found


@cache
def by_text() -> dict[str, list[Place]]:
    """The same by the line alone."""
    found = defaultdict(list)
    for (_, line, _), there in places().items():
        found[line] += there
    return found


def find(mutant: Mutant) -> Place | None:
    """Where the line is now, or None: it is gone, or several places could be meant.

    Its function in the file of the hint, else in the one file that has it; else the line itself, if it is only once in
    the package (the function was renamed, or joined with another).
    """
    same = places().get(mutant.key, [])
    for candidates in ([place for place in same if place.file == mutant.file], same, by_text().get(mutant.line, [])):
        if len(candidates) == 1:
            return candidates[0]
    return None


def mutated(mutant: Mutant, place: Place) -> str:
    """Text of the whole file with the line changed."""
    lines = sources()[place.file].split("\n")
    lines[place.number - 1] = lines[place.number - 1].replace(mutant.line, mutant.new, 1)
    return "\n".join(lines)


def drawn() -> list[Mutant]:
    """The mutants as they were drawn, in their order: a mutant's number is its index."""
    return [Mutant(**json.loads(line)) for line in DRAWN.read_text(encoding="utf-8").splitlines()]


def write_drawn(mutants: list[Mutant]) -> None:
    """The opposite of `drawn`."""
    DRAWN.write_text("".join(json.dumps(mutant._asdict()) + "\n" for mutant in mutants), encoding="utf-8")
