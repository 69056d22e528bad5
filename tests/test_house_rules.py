"""What CONTRIBUTING.md asks of the code and a linter does not see: files and functions of a size, no import circle.

It is asked of paceline and of the laboratory beside it.

The set of exceptions shrinks only: what keeps the rule again has to leave it.
"""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from math import nan
from pathlib import Path

import pytest
from paceline.base.errors import ArgumentError, check_within

ROOT = Path(__file__).parents[1]
OUTSIDE = {"tests", "examples", "benchmarks", "build"}  # of both packages
NAMES = {"paceline_laboratory": "laboratory", "paceline": ""}  # of the packages: their folders
MOST_FILE_LINES = 900
MOST_FUNCTION_LINES = 60  # without the docstring
MOST_IGNORED_TYPES = 8
TYPED = (".typing/paceline/my_policy.py", ".typing/paceline/policies/my_policy.py")  # as mypy sees them
A_NUMBER = 1_000_000  # in an interval, in place of what is worked out
RECORDINGS = {"TrieRecording", "RoundsRecording"}

# Their options stand one a line; what they do is shorter than the limit.
LONG_FUNCTIONS = set()


@cache
def sources():
    """Text of every Python file by its path from the root.

    Hidden folders, as of an environment, are not entered; `my_policy.py` at the root is a user's.
    """
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    ours = [path for path in ROOT.glob("*.py") if not path.name.startswith("my_")]
    files = [*ours, *(file for folder in folders for file in folder.rglob("*.py"))]
    places = sorted(file.relative_to(ROOT) for file in files)
    return {place: (ROOT / place).read_text(encoding="utf-8") for place in places if "build" not in place.parts}


@cache
def package():
    """Syntax tree of every module of both packages by its path from the root."""
    return {path: ast.parse(text) for path, text in sources().items() if path.parts[0] not in OUTSIDE}


KINDS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Import | ast.ImportFrom | ast.Call | ast.Assign


@cache
def nodes():
    """What rules ask about of every module, by its path; a walk through all trees takes a second."""
    return {path: [node for node in ast.walk(tree) if isinstance(node, KINDS)] for path, tree in package().items()}


def module_name(path):
    """`policies/by_name.py` as `policies.by_name`, and the `__init__.py` of a folder as the folder."""
    return ".".join(path.with_suffix("").parts).removesuffix("__init__").rstrip(".")


def test_a_policy_that_a_user_put_at_the_root_is_not_ours(tmp_path):
    """Not for git, nor for ruff, with git or without, nor for mypy; files of this name elsewhere are."""
    kept = tmp_path / "examples" / "my_policy.py"
    kept.parent.mkdir()
    for file in (tmp_path / "my_policy.py", kept):
        file.write_text("import os\n", encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--show-files", "."]
    listed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert set(listed) == {str(kept), str(tmp_path / "pyproject.toml")}
    assert "/my_*.py" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    left_out = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["exclude"]
    found = {path: any(re.search(one, path) for one in left_out) for path in TYPED}
    assert found == {".typing/paceline/my_policy.py": True, ".typing/paceline/policies/my_policy.py": False}


def test_files_are_short():
    lengths = {path.as_posix(): sources()[path].count("\n") for path in package()}
    assert {path: length for path, length in lengths.items() if length > MOST_FILE_LINES} == {}


def test_the_laboratory_is_imported_by_its_own_name():
    """As `paceline.laboratory`, which an editable install finds too, its modules would be there twice."""
    named = re.compile(r"^\s*(from|import) paceline\.laboratory\b|^from paceline import .*\blaboratory\b", re.MULTILINE)
    assert {path.as_posix() for path, text in sources().items() if named.search(text)} == set()


def test_folders_have_two_storeys():
    assert {path.as_posix() for path in package() if len(path.parts) > 3} == set()
    inner = Counter(path.parent for path in package() if len(path.parts) == 3)
    assert {folder.as_posix(): count for folder, count in inner.items() if count < 4} == {}


def length(function):
    """Lines from `def` to the end, the docstring left out."""
    end = function.end_lineno
    says = function.body[0] if ast.get_docstring(function) is not None else None
    return end - function.lineno + 1 - (0 if says is None else says.end_lineno - says.lineno + 1)


def test_functions_are_short():
    long = {
        f"{path.as_posix()}:{function.name}"
        for path, found in nodes().items()
        for function in found
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and length(function) > MOST_FUNCTION_LINES
    }
    assert long == LONG_FUNCTIONS


def test_public_methods_say_what_they_do():
    """One that implements a method of a base or a protocol leaves it to that: `See `World`.` is no docstring."""
    classes = [(path, one) for path, tree in package().items() for one in tree.body if isinstance(one, ast.ClassDef)]
    bases = {
        one: {re.match(r"[\w.]*", ast.unparse(base))[0].split(".")[-1] for base in one.bases} for _, one in classes
    }
    said = defaultdict(set)  # by class, its methods with words, as they are called
    for _, one in classes:
        said[one.name] |= {called(each) for each in methods(one) if ast.get_docstring(each) is not None}
    protocols = set().union(*(said[one.name] for _, one in classes if "Protocol" in bases[one]))
    above = defaultdict(set)
    for _, one in classes:
        above[one.name] |= bases[one]

    def inherited(name, seen=()):
        return set().union(*(said[base] | inherited(base, (*seen, name)) for base in above[name] if base not in seen))

    silent = [
        f"{path.as_posix()}:{one.name}.{each.name}"
        for path, one in classes
        for each in methods(one)
        if not (each.name.startswith("_") or one.name.startswith("_"))
        and called(each) not in said[one.name] | protocols | inherited(one.name)
    ]
    assert silent == []


def methods(one):
    """Those of a class."""
    return [each for each in one.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def called(method):
    """Its name and those of its arguments."""
    return method.name, *(argument.arg for argument in (*method.args.args, *method.args.kwonlyargs))


@pytest.mark.parametrize("laboratory", [False, True])
def test_a_public_class_name_means_one_thing(laboratory):
    names = Counter(
        node.name
        for path, tree in package().items()
        if (path.parts[0] == "laboratory") is laboratory
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()


def imported(path, node, modules):
    """Modules of ours that an import statement in the file `path` names; those for type checkers are no exception."""
    if isinstance(node, ast.Import):
        return {name.name for name in node.names} & modules
    if node.level:
        base = path.parent.parts[: len(path.parent.parts) + 1 - node.level]
        stem = ".".join([*base, *([node.module] if node.module else [])])
    else:
        package, _, inside = node.module.partition(".")
        stem = ".".join(part for part in (NAMES.get(package, package), inside) if part)
    named = {f"{stem}.{name.name}".lstrip(".") for name in node.names}
    return named & modules or {stem} & modules


@cache
def imports():
    modules = {module_name(path) for path in package()}
    return {
        module_name(path): {
            name
            for node in found
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in imported(path, node, modules)
        }
        for path, found in nodes().items()
    }


def test_no_imports_in_a_circle():
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_imports_are_seen():
    """A test that sees no imports would find no circle either."""
    found = imports()
    assert {"policies.chain_text", "decoding.legal_steps"} <= found["policies.by_name"]
    assert "policies.fixed" in found["policies.oracles"]
    assert {"laboratory.arena.cells", "traces.opening"} <= found["laboratory.arena.run"]


def test_hardly_a_type_is_ignored():
    marks = Counter({path.as_posix(): sources()[path].count("# type: ignore") for path in package()})
    assert marks.total() <= MOST_IGNORED_TYPES, +marks


def asked_types(found):
    """Names of the classes that `isinstance` is asked about."""
    for node in found:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            yield from (part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name))


def test_nobody_asks_for_the_form_of_a_recording():
    asking = {path.as_posix() for path, found in nodes().items() if RECORDINGS & set(asked_types(found))}
    assert {path for path in asking if not path.startswith("traces/")} == set()


def texts(node, named):
    """The texts that an expression may stand for."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            shown = [
                part.value
                if isinstance(part, ast.Constant)
                else format(A_NUMBER, texts(part.format_spec, named)[0] if part.format_spec else "")
                for part in parts
            ]
            return ["".join(shown)]
        case ast.IfExp(body=one, orelse=other):
            return texts(one, named) + texts(other, named)
        case ast.Name(id=name) if name in named:
            return [text for value in named[name] for text in texts(value, named)]
    raise AssertionError(f"what interval is {ast.unparse(node)}?")


def intervals():
    """(where, interval) of every call of `check_within` in the package."""
    named = {}
    for node in (node for found in nodes().values() for node in found if isinstance(node, ast.Assign)):
        if isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant | ast.JoinedStr | ast.IfExp):
            named.setdefault(node.targets[0].id, []).append(node.value)
    return [
        (f"{path}:{call.lineno}", text)
        for path, found in nodes().items()
        for call in found
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check_within"
        for text in texts(call.args[2], named)
    ]


def test_every_interval_of_the_package_is_one():
    found = intervals()
    assert len(found) > 40
    for where, interval in found:
        assert interval[0] in "[(", where
        assert interval[-1] in ")]", where
        with pytest.raises(ArgumentError, match=r"^x must be (in|>|>=) .*, got nan$"):
            check_within("x", nan, interval)
        low, high = (end.rpartition("=")[2].replace(",", "") for end in interval[1:-1].split(", "))
        assert float(low) < float(high) or "=" in interval, where
