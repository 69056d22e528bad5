"""Writes `__init__.pyi`: `python -m tests.stub --write`. Keywords that a record declares are spelled out there."""

import ast
import builtins
import importlib
import inspect
import json
import sys
from pathlib import Path

import paceline

HEAD = '"""Types of the functions that `__init__.py` imports when asked for them. Written by tests/stub.py."""'
STUB = Path(paceline.__file__).with_suffix(".pyi")


class Module:
    """A module of the package as it is written: where each name comes from, and the fields of its classes."""

    def __init__(self, place):
        self.place = place
        source = inspect.getsource(importlib.import_module(f"paceline.{place}"))
        self.tree = ast.parse(source)
        self.origins = {}
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                above = place.split(".")[: len(place.split(".")) - node.level] if node.level else []
                stem = "." * bool(node.level) + ".".join([*above, node.module])
                self.origins.update((each.asname or each.name, stem) for each in node.names)

    def defined(self, name):
        return next(node for node in self.tree.body if getattr(node, "name", "") == name)

    def origin(self, name):
        return self.origins.get(name, f".{self.place}")


def keywords(record):
    """(name, type, module) of the fields, those of the bases first, as `dataclass` orders them."""
    found = {}
    for kind in reversed(record.__mro__[:-1]):
        place = kind.__module__.removeprefix("paceline.")
        written = Module(place)
        for node in written.defined(kind.__name__).body:
            if isinstance(node, ast.AnnAssign):
                found[node.target.id] = (node.annotation, written)
    return found


def function(name, place, imports):
    """A function that takes keywords of a record, its signature spelled out; None of others."""
    module = Module(place)
    node = module.defined(name)
    taken = [one.args[0].id for one in node.decorator_list if isinstance(one, ast.Call) and one.func.id == "takes"]
    if not taken:
        return None
    record = getattr(importlib.import_module(f"paceline.{place}"), taken[0])
    types = keywords(record)
    arguments = [*node.args.args, *node.args.kwonlyargs]
    types |= {one.arg: (one.annotation, module) for one in arguments}
    types["return"] = (node.returns, module)
    for annotation, where in types.values():
        for part in ast.walk(annotation):
            if isinstance(part, ast.Name) and not hasattr(builtins, part.id):
                imports[part.id] = where.origin(part.id)
    lines = []
    for one in inspect.signature(getattr(paceline, name)).parameters.values():
        if one.kind is one.KEYWORD_ONLY and "    *," not in lines:
            lines.append("    *,")
        default = (
            ""
            if one.default is one.empty
            else f" = {json.dumps(one.default)}"
            if isinstance(one.default, str)
            else f" = {one.default!r}"
        )
        lines.append(f"    {one.name}: {ast.unparse(types[one.name][0])}{default},")
    return f"def {name}(\n" + "\n".join(lines) + f"\n) -> {ast.unparse(node.returns)}: ..."


def written():
    """The text of the stub."""
    imports, bodies = {}, []
    for name, place in paceline.MODULES.items():
        body = function(name, place, imports)
        if body is None:
            imports[name] = f".{place}"
        else:
            bodies.append(body)
    again = {f"from {imports.pop(name)} import {name} as {name}" for name in paceline.MODULES if name in imports}
    joined = {place: sorted(name for name, origin in imports.items() if origin == place) for place in imports.values()}
    lines = sorted({f"from {place} import {', '.join(names)}" for place, names in joined.items()} | again)
    head = [line for line in lines if not line.startswith("from .")], [line for line in lines if line[5] == "."]
    names = "".join(f'    "{name}",\n' for name in paceline.MODULES)
    parts = [HEAD, *("\n".join(part) for part in head), "__version__: str", f"__all__ = [\n{names}]"]
    return "\n\n".join([*parts, "\n".join(bodies)]) + "\n"


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    STUB.write_text(written(), encoding="utf-8")
