"""Tests of a function that a prompt asks for, and the program that puts an answer to them."""

import ast
import keyword
import re
import textwrap
from dataclasses import dataclass, fields
from pathlib import Path

from ...traces.errors import TraceFormatError

_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)(?:^```|\Z)", re.MULTILINE | re.DOTALL)  # one may be cut short
_PYTHON = ("", "py", "python", "python3")
# Where a completion of a function ends: the stop texts of Chen et al. 2021, arXiv:2107.03374, section 2.1.
_BEYOND = re.compile(r"\n(?=class|def|#|if|print|```)")
_BODY = re.compile(r"\n*[ \t]+\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """How code that is written for a prompt is tested.

    Attributes:
        entry_point: the function that is asked for.
        code: what stands before it and its head, which an answer may go on from.
        check: a program that ends without an exception if the function, defined before it, is right.
    """

    entry_point: str
    code: str
    check: str

    def program(self, answer: str) -> str:
        """An answer as a program that defines the function."""
        return f"{self.code}{self._written(answer)}\n"

    def head(self) -> str:
        """`code` as a program of its own, with what its other functions and imports define.

        Raises:
            ValueError: it is none, whatever the function's body.
        """
        last = self.code.rstrip().rpartition("\n")[2]
        indent = last[: len(last) - len(last.lstrip())] + "    "
        for body in ("", f"\n{indent}pass\n"):
            try:
                ast.parse(self.code + body)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            return self.code + body
        raise ValueError(f"tests, code, must be Python that ends in the head of a function, got {last[:60]!r}")

    def _written(self, answer: str) -> str:
        """What an answer adds to `code`, whose imports and helpers it may leave out.

        Of a dialogue's answer it is the first block of Python that defines the function. An answer without one goes on
        from `code`, up to the next thing that begins at the left margin; if it does not begin as a function's body
        does, and defines the function, it is that definition.
        """
        defines = re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{self.entry_point}\b", re.MULTILINE)
        for name, block in _BLOCK.findall(answer):
            if name.lower() in _PYTHON and defines.search(block):
                return "\n\n" + textwrap.dedent(block)
        found = None if _BODY.match(answer) else defines.search(answer)
        return _BEYOND.split(answer if found is None else answer[found.start() :].lstrip(), maxsplit=1)[0]


def read_tests(path: Path, where: str, value: object) -> CodeTests:
    """Tests as a prompts file has them; raises TraceFormatError."""
    names = [field.name for field in fields(CodeTests)]
    if not isinstance(value, dict) or sorted(value) != sorted(names):
        raise TraceFormatError(path, where, f"must be an object of {', '.join(names)}", value)
    for name in names:
        if not isinstance(value[name], str) or not value[name].strip():
            raise TraceFormatError(path, f"{where}, {name}", "must be a text that is not blank", value[name])
    if not value["entry_point"].isidentifier() or keyword.iskeyword(value["entry_point"]):
        raise TraceFormatError(path, f"{where}, entry_point", "must be the name of a function", value["entry_point"])
    return CodeTests(**value)
