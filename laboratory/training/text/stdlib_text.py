"""Functions and docstrings of the running Python's standard library; the domains `code` and `prose`."""

import ast
import inspect
import random
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

from .item import Corpus, Item
from .text_data import text_data

MIN_CHARACTERS, MAX_CHARACTERS = 160, 900
HELD_OUT_ONE_IN = 20
Definition = ast.FunctionDef | ast.AsyncFunctionDef


def read_stdlib(seed: int) -> Corpus:
    """Read every function and docstring of a fit length; the order is shuffled by `seed`.

    Held-out ones come from modules that training never sees.
    """
    found = Corpus(train={"code": [], "prose": []}, held_out={"code": [], "prose": []})
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in _module_files(root):
        name = path.relative_to(root).as_posix()
        side = found.held_out if zlib.crc32(name.encode()) % HELD_OUT_ONE_IN == 0 else found.train
        for item in _read_module(path, name):
            side[item.tag].append(item)
    for part in (found.train, found.held_out):
        for tag, items in part.items():
            unique = list({item.text: item for item in items}.values())
            random.Random(f"{seed}/{tag}").shuffle(unique)
            part[tag] = unique
    return found


def _module_files(root: Path) -> Iterator[Path]:
    skipped = frozenset(text_data("stdlib_text")["skipped_folders"])
    for path in sorted(root.rglob("*.py")):
        if not skipped.intersection(path.relative_to(root).parts):
            yield path


def _read_module(path: Path, name: str) -> Iterator[Item]:
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (UnicodeDecodeError, SyntaxError):
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            yield from _code_item(node, lines, name)
        if isinstance(node, Definition | ast.ClassDef):
            yield from _prose_item(node, name)


def _code_item(node: Definition, lines: list[str], name: str) -> Iterator[Item]:
    """The source of one function without its docstring, its first lines as the prompt."""
    kept = lines[node.lineno - 1 : node.end_lineno]
    if ast.get_docstring(node, clean=False) is not None:
        first = node.body[0]
        kept = lines[node.lineno - 1 : first.lineno - 1] + lines[first.end_lineno or 0 : node.end_lineno]
    body = [line[node.col_offset :].rstrip() for line in kept if line.strip()]
    text = "\n".join(body)
    if len(body) < 5 or not MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS or not text.isascii():
        return
    cut = max(2, len(body) // 3)
    head = "\n".join(body[:cut])
    yield Item(tag="code", prompt=f"# {name}\n{head}\n", completion="\n".join(body[cut:]))


def _prose_item(node: Definition | ast.ClassDef, name: str) -> Iterator[Item]:
    """One docstring, cut after about a third of its words."""
    docstring = ast.get_docstring(node, clean=False)
    if docstring is None:
        return
    text = inspect.cleandoc(docstring)
    if not MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS or not text.isascii() or ">>>" in text:
        return
    cut = text.find(" ", max(90, len(text) // 3))
    if cut < 0:
        return
    yield Item(tag="prose", prompt=f"About {node.name} in {name}:\n{text[:cut]}", completion=text[cut:])
