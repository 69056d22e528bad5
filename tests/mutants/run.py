"""Which tests hit which mutant, and which test kills it."""

import ast
import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from .forked import run
from .places import DRAWN, ROOT, Mutant, Place, drawn, find, mutated, sources

WORK = ROOT / "build" / "mutants"
HITS = WORK / "hits.jsonl"
FATES = WORK / "fates.jsonl"
KILLS = DRAWN.with_name("kills.jsonl")
LEFT_OUT = ("tests/docs/", "tests/claims/")  # they play everything
FIRST, FIRST_S, MOST_S = 40, 60.0, 150.0


class Probes(ast.NodeTransformer):
    """Puts a call of the probe in front of the innermost statement of each line asked for."""

    def __init__(self, numbers: dict[int, int]) -> None:
        self._numbers = numbers  # of mutants by line

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, [each for statement in statements for each in self._probed(statement)])
        return node

    def _probed(self, statement: ast.stmt) -> list[ast.stmt]:
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        found = [self._numbers.pop(line) for line in lines if line in self._numbers]
        return [*(ast.parse(f"mutant_probe({number})").body[0] for number in found), statement]


def probed() -> dict[str, str]:
    """Every file with a mutant, with a probe for each."""
    numbers = defaultdict(dict)
    for number, mutant in enumerate(drawn()):
        place = find(mutant)
        if place is not None:
            numbers[place.file][place.number] = number
    return {
        file: ast.unparse(ast.fix_missing_locations(Probes(lines).visit(ast.parse(sources()[file]))))
        for file, lines in numbers.items()
    }


def read(path: Path) -> list[dict]:
    """Rows of a file of JSON lines; none if there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def add(path: Path, row: dict) -> None:
    """One more row, in one piece: another process may add to the file as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps(row).encode() + b"\n")


def note_hits(under: list[str], most_s: float) -> None:
    """Runs every test file once, with probes; notes seconds of the tests that pass, and the mutants each one hits."""
    texts = probed()
    files = sorted(
        {path.relative_to(ROOT).as_posix() for folder in under for path in (ROOT / folder).rglob("test_*.py")}
    )
    for file in files:
        if file.startswith(LEFT_OUT) or any(row["file"] == file for row in read(HITS)):
            continue
        ran = run([file], texts, cpu_s=most_s, first_only=False)
        seconds, sound = defaultdict(float), {}
        for test, phase, outcome, spent in ran.reports:
            seconds[test] += spent
            sound[test] = sound.get(test, True) and outcome == "passed" if phase != "start" else sound.get(test, True)
        hits = defaultdict(list)
        for number, test in ran.hits:
            hits[number].append(test)
        tests = {test: round(seconds[test], 3) for test, is_sound in sound.items() if is_sound}
        unsound = [test for test, is_sound in sound.items() if not is_sound]
        add(
            HITS, {"file": file, "code": ran.code, "cpu_s": ran.cpu_s, "tests": tests, "unsound": unsound, "hits": hits}
        )


@cache
def hitting() -> tuple[dict[str, float], dict[int, dict[str, bool]]]:
    """Seconds of each test, and by mutant the tests of files that hit it: whether the test itself was seen to."""
    seconds, found = {}, defaultdict(dict)
    for row in read(HITS):
        seconds |= row["tests"]
        for number, tests in row["hits"].items():
            found[int(number)] |= {test: test in tests for test in row["tests"]}
    return seconds, found


def cheapest(tests: list[str], most_s: float, most: int | None = None) -> list[str]:
    """Of tests in their order those that fit."""
    seconds, total, kept = hitting()[0], 0.0, []
    for test in tests[:most]:
        total += seconds[test]
        if total <= most_s:
            kept.append(test)
    return kept


def first_failing(mutant: Mutant, place: Place, tests: list[str], cpu_s: float) -> dict:
    """Fate of a mutant under some tests: `died` with the test, or `survived`."""
    ran = run(tests, {place.file: mutated(mutant, place)}, cpu_s=cpu_s, first_only=True)
    for failed, phase, outcome, _ in ran.reports:
        if outcome == "failed":
            # Where the file cannot be imported, any of its tests does.
            test = failed if phase != "collect" else next(test for test in tests if test.startswith(failed))
            return {"fate": "died", "test": test, "how": f"{phase} failed", "cpu_s": ran.cpu_s}
    if ran.code == 0:
        return {"fate": "survived", "cpu_s": ran.cpu_s}
    if ran.code is None and ran.reports:
        return {"fate": "died", "test": ran.reports[-1][0], "how": "did not end", "cpu_s": ran.cpu_s}
    return {"fate": "not run", "code": ran.code, "cpu_s": ran.cpu_s}


def present(test: str) -> list[str]:
    """Ids to try of a test that may have moved: with its parameters, then all of the function; none if it is gone."""
    file, _, name = test.partition("::")
    function = re.escape(name.partition("[")[0].split("::")[0])
    defined = re.compile(rf"^(?:(?:async )?def |class )?{function}\b\s*[(:=]", re.MULTILINE)
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if defined.search(path.read_text(encoding="utf-8"))]
    files.sort(key=lambda path: path != ROOT / file)
    return [f"{path.relative_to(ROOT).as_posix()}::{each}" for path in files for each in (name, name.partition("[")[0])]


def fate_of(number: int, mutant: Mutant, killer: str | None) -> dict:
    """Tries the recorded killer, then the tests that hit the mutant today, the cheapest first."""
    place = find(mutant)
    if place is None:
        return {"fate": "gone"}
    fate = {}
    if killer is not None:
        fate = {"fate": "killer gone"}
        for test in present(killer):
            fate = first_failing(mutant, place, [test], 600.0)
            if fate["fate"] == "died":
                return fate
    seconds, found = hitting()
    if number not in found:
        return fate or {"fate": "not hit" if seconds else "no killer known"}
    order = sorted(found[number], key=lambda test: (not found[number][test], seconds[test]))
    first = cheapest([test for test in order if found[number][test]], FIRST_S, FIRST)
    later = cheapest([test for test in order if test not in first], MOST_S)
    spent = 0.0
    for tests in (first[:8], first[8:], later):
        if tests:
            fate = first_failing(mutant, place, tests, 60.0 + 3 * sum(seconds[test] for test in tests))
            spent += fate["cpu_s"]
            if fate["fate"] == "died":
                break
    return fate | {"cpu_s": spent}


def note_fates(part: int, parts: int) -> None:
    """Fate of every mutant that has none yet, of one part of them; adds to FATES."""
    done = {row["number"] for row in read(FATES)}
    killers = {row["number"]: row.get("test") for row in read(KILLS)}
    for number, mutant in enumerate(drawn()):
        if number % parts == part and number not in done:
            add(FATES, {"number": number} | fate_of(number, mutant, killers.get(number)))


def record() -> None:
    """Writes KILLS of FATES, in the order of the mutants."""
    rows = sorted(read(FATES), key=lambda row: row["number"])
    KILLS.write_text(
        "".join(json.dumps({k: v for k, v in row.items() if k != "cpu_s"}) + "\n" for row in rows), "utf-8"
    )
