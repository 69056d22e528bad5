"""Draws mutants: one line of a function changed, as a slip of the pen would change it.

Left alone is what no test has to notice: docstrings, annotations, defaults, what is raised and what is asserted,
f-strings, `__repr__`, `strict` of zip, and blocks for type checkers. Each kind has the same share; no line is drawn
twice; a line is only drawn if its function's qualified name and its text are found in one place of the package, so that
it is known again after a move.
"""

import ast
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from .places import FUNCTIONS, Mutant, functions, lines_of, mutated, places, sources

MOST_OF_LABORATORY = 40
TURNED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
TURNED |= {"in": "not in", "not in": "in"}
SWAPPED = {"and": "or", "or": "and", "+": "-", "-": "+", "+=": "-=", "-=": "+="}
LEFT_ALONE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.ClassDef, *FUNCTIONS)
NAMES_LEFT_ALONE = {"__repr__", "__str__"}
TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.ListComp)

Edit = tuple[str, int, int, str]  # kind, from and to (offsets in bytes), new text


class Source:
    """A file as bytes, which is what offsets of a syntax tree count."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.bytes = text.encode()
        self._starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr) -> tuple[int, int]:
        """From where to where an expression stands, without parentheses around it."""
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def words(self, node: ast.expr) -> str:
        """Text of an expression."""
        start, end = self.span(node)
        return self.bytes[start:end].decode()

    def between(self, left: ast.expr, right: ast.expr) -> tuple[str, int, int] | None:
        """The operator between two expressions, and where it stands; None beside a comment."""
        start, end = self.span(left)[1], self.span(right)[0]
        found = re.fullmatch(rb"[\s()]*?((?:is not|not in|[a-z]+|[-+*/<>=!%@|&^]+))[\s()]*", self.bytes[start:end])
        return None if found is None else (found[1].decode(), start + found.start(1), start + found.end(1))


def turned(source: Source, kind: str, left: ast.expr, right: ast.expr, table: dict[str, str]) -> Iterator[Edit]:
    """The operator between two expressions, turned into another."""
    operator = source.between(left, right)
    if operator is not None and operator[0] in table:
        yield kind, operator[1], operator[2], table[operator[0]]


def edits_of_expression(source: Source, node: ast.AST) -> Iterator[Edit]:
    """What may be changed of one expression, those inside it left out."""
    match node:
        case ast.Compare(left=left, comparators=others):
            for one, other in pairwise([left, *others]):
                yield from turned(source, "comparison", one, other, TURNED)
        case ast.BoolOp(values=values):
            for one, other in pairwise(values):
                yield from turned(source, "and/or", one, other, SWAPPED)
        case ast.BinOp(left=left, right=right, op=ast.Add() | ast.Sub()):
            text = any(isinstance(side, TEXTS) or isinstance(getattr(side, "value", 0), str) for side in (left, right))
            if not text:
                yield from turned(source, "plus/minus", left, right, SWAPPED)
        case ast.AugAssign(target=target, value=value, op=ast.Add() | ast.Sub()) if not isinstance(value, TEXTS):
            yield from turned(source, "plus/minus", target, value, SWAPPED)
        case ast.UnaryOp(op=ast.Not()):
            start = source.span(node)[0]
            yield "not", start, start + len("not "), ""
        case ast.Constant(value=bool() as value):
            yield "constant", *source.span(node), str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", *source.span(node), repr(value + 1)
        case ast.IfExp(test=test):
            yield "condition", *source.span(test), f"(not ({source.words(test)}))"


def edits_of_statement(source: Source, node: ast.AST, returns: str) -> Iterator[Edit]:
    """A condition negated, a branch that is never taken, another value returned."""
    match node:
        case ast.If(test=test):
            yield "condition", *source.span(test), f"not ({source.words(test)})"
            yield "branch", *source.span(test), "False"
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            words = source.words(value)
            new = {"int": f"({words}) + 1", "float": f"({words}) + 1", "bool": f"not ({words})", "str": '""'}
            yield "return", *source.span(value), new.get(returns, "None")


def edits(source: Source, node: ast.AST, returns: str) -> Iterator[Edit]:
    """All that may be changed below a node of a function whose annotation says what it returns."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    yield from edits_of_statement(source, node, returns)
    yield from edits_of_expression(source, node)
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            strict = isinstance(child, ast.keyword) and child.arg == "strict"
            if isinstance(child, ast.AST) and name != "annotation" and not strict and not isinstance(child, LEFT_ALONE):
                yield from edits(source, child, returns)


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    """Every change of a file that stays in one line."""
    source = Source(text)
    keys = {number: key for key, number in lines_of(text)}
    for name, function in functions(ast.parse(text)):
        if function.name in NAMES_LEFT_ALONE:
            continue
        returns = "" if function.returns is None else ast.unparse(function.returns)
        for statement in function.body:
            if isinstance(statement, LEFT_ALONE):
                continue
            for kind, start, end, new in edits(source, statement, returns):
                number = source.bytes.count(b"\n", 0, start) + 1
                if b"\n" in source.bytes[start:end] or keys[number][0] != name:
                    continue
                changed = (source.bytes[:start] + new.encode() + source.bytes[end:]).decode()
                line = changed.split("\n")[number - 1].strip()
                yield Mutant(kind, file, *keys[number], line)


def differs(mutant: Mutant) -> bool:
    """Whether the change is Python, and another syntax tree than before."""
    (place,) = places()[mutant.key]
    try:
        return ast.dump(ast.parse(mutated(mutant, place))) != ast.dump(ast.parse(sources()[place.file]))
    except SyntaxError:
        return False


def draw(num: int, seed: int) -> list[Mutant]:
    """`num` mutants of the package, the same for the same seed and sources, in the order of their files."""
    rng = random.Random(seed)
    kinds = defaultdict(list)
    for file, text in sources().items():
        for mutant in mutants_of(file, text):
            if len(places()[mutant.key]) == 1:
                kinds[mutant.kind].append(mutant)
    for mutants in kinds.values():
        rng.shuffle(mutants)
    chosen: dict[tuple[str, str, int], Mutant] = {}
    num_laboratory = 0
    while len(chosen) < num:
        for kind in sorted(kinds):
            mutant = kinds[kind].pop()
            laboratory = mutant.file.startswith("laboratory/")
            is_full = len(chosen) == num or (laboratory and num_laboratory == MOST_OF_LABORATORY)
            if not is_full and mutant.key not in chosen and differs(mutant):
                num_laboratory += laboratory
                chosen[mutant.key] = mutant
    return sorted(chosen.values(), key=lambda mutant: (mutant.file, *mutant.key))
