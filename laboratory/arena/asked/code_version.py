"""What code a result depends on, as a hash of it: comments and docstrings count for nothing.

A module depends on what it imports, and so on, as far as that is in this package.
"""

import ast
from collections.abc import Collection, Iterator
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

PACKAGE = __name__.partition(".")[0]
DIGITS = 12


def code_version(roots: Collection[str], *, without: Collection[str] = ()) -> str:
    """Hash of modules and of all they depend on.

    Args:
        roots: by full name.
        without: modules, and packages, that are left out with what only they depend on.
    """
    pending, seen = list(roots), set(roots)
    while pending:
        for name in _source(pending.pop())[1]:
            if name not in seen and not any(name == one or name.startswith(f"{one}.") for one in without):
                seen.add(name)
                pending.append(name)
    return _digest([f"{name} {_source(name)[0]}" for name in sorted(seen)])


def file_version(path: Path) -> str:
    """Hash of a file of Python outside the package, and of what it imports of the package."""
    text = path.read_bytes()
    return _digest([text.decode(errors="replace"), code_version(dict.fromkeys(_imported(ast.parse(text), "")))])


@cache
def _source(name: str) -> tuple[str, tuple[str, ...]]:
    """A hash of a module's code, and the modules of the package that it imports."""
    spec = find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return "", ()
    tree = ast.parse(Path(spec.origin).read_bytes())
    package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
    imported = tuple(dict.fromkeys(_imported(tree, package)))
    _drop_docstrings(tree)
    return _digest([ast.dump(tree)]), imported


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith(f"{PACKAGE}."))
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base.startswith(PACKAGE):
                yield base
                yield from (name for one in node.names if _is_module(name := f"{base}.{one.name}"))


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


def _digest(texts: list[str]) -> str:
    found = blake2b(digest_size=DIGITS // 2)
    for text in texts:
        found.update(text.encode())
        found.update(b"\0")
    return found.hexdigest()
