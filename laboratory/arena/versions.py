"""Hashes of what a run is made of: where one of them changes, a kept result is one of another run.

A module depends on what it imports, and so on, within paceline and its laboratory; comments and docstrings do not
count.
"""

import ast
import inspect
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from paceline.policies.fixed import Chain
from paceline.policies.spec import PolicySpec
from paceline.sim.cost.base import CostModel
from paceline.traces.recording import Recording

from .ladders import ladder

PACKAGES = ("paceline", "paceline_laboratory")
DIGITS = 12
SIMULATOR = "paceline_laboratory.arena.play"
# How a text becomes a policy has no part in what it does, and would bring in all of them.
NO_SIMULATOR = ("paceline.policies.spec", "paceline.policies.registry")
# Shapes at which seconds of a ladder are asked for: (rows, new tokens of a row, tokens held by a row).
SHAPES = ((1, 1, 0), (1, 1, 500), (1, 5, 200), (1, 200, 0), (8, 1, 200), (8, 5, 200), (32, 9, 400))


def code_version(roots: Collection[str], *, without: Collection[str] = ()) -> str:
    """Hash of modules, by full name, and of all they depend on, but for what only those of `without` depend on."""
    pending, seen = list(roots), set(roots)
    while pending:
        for name in _source(pending.pop())[1]:
            if name not in seen and not any(name == one or name.startswith(f"{one}.") for one in without):
                seen.add(name)
                pending.append(name)
    return _digest(f"{name} {_source(name)[0]}".encode() for name in sorted(seen))


def file_version(path: Path) -> str:
    """Hash of a file of Python outside our packages, and of what it imports of them."""
    text = path.read_bytes()
    return _digest([text, code_version(dict.fromkeys(_imported(ast.parse(text), ""))).encode()])


@cache
def _source(name: str) -> tuple[str, tuple[str, ...]]:
    """A hash of a module's code, and the modules of our packages that it imports."""
    spec = find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return "", ()
    tree = ast.parse(Path(spec.origin).read_bytes())
    package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
    imported = tuple(dict.fromkeys(_imported(tree, package)))
    _drop_docstrings(tree)
    return _digest([ast.dump(tree).encode()]), imported


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if _is_ours(one.name))
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if _is_ours(base):
                yield base
                yield from (name for one in node.names if _is_module(name := f"{base}.{one.name}"))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


@cache
def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the part before the last point is a module and no package
        return False


def _drop_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if ast.get_docstring(node, clean=False) is not None:
                    node.body = node.body[1:]


def simulator_version() -> str:
    """Of the code that plays a policy, but for policies."""
    return code_version([SIMULATOR], without=NO_SIMULATOR)


def policy_version(spec: PolicySpec) -> str:
    """Of a policy's code, and of files that its options name.

    Of a class of another package, or in a file, the file that it stands in counts and what that imports of ours, and
    nothing else that it imports.
    """
    return _digest(_of_policy(spec))


def recording_version(path: Path) -> str:
    """Of a .trace folder: its `meta.json` holds hashes of all else."""
    return _digest([(path / "meta.json").read_bytes()])


def ladder_version(name: str, recording: Recording) -> str:
    """Of the seconds that a ladder gives a recording's members, at shapes of every size."""
    return _digest([f"{seconds!r}".encode() for seconds in _seconds(ladder(name).cost(recording), recording)])


def _seconds(cost: CostModel, recording: Recording) -> Iterator[object]:
    yield cost.lookup_s
    for model in recording.about.models:
        terms = cost.draft_terms(model)
        yield terms
        if terms is not None and terms.per_token_s is not None:
            continue
        for rows, new, held in SHAPES:
            yield cost.forward_s(model, num_rows=rows, new_tokens=rows * new, context_tokens=rows * held)


def _of_policy(spec: PolicySpec) -> Iterator[bytes]:
    kind = spec.policy_class or Chain
    module = kind.__module__
    if _is_ours(module):
        yield code_version([module]).encode()
    else:
        yield file_version(Path(inspect.getfile(kind))).encode()
    for name, value in spec.options.items():
        yield name.encode()
        if isinstance(value, PolicySpec):
            yield from _of_policy(value)
        elif isinstance(value, str) and Path(value).is_file():
            yield Path(value).read_bytes()


def _digest(parts: Iterable[bytes]) -> str:
    found = blake2b(digest_size=DIGITS // 2)
    for part in parts:
        found.update(part)
        found.update(b"\0")
    return found.hexdigest()
