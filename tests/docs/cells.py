"""Runs the cells of a page one after another in a fresh interpreter, as a notebook does.

Started as a script it is that interpreter: a line of JSON with the code of a cell in, a line with what it showed out.
"""

import ast
import json
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path


class Cells:
    """A fresh interpreter; `run` each cell, then `close`.

    Args:
        python: that runs the cells.
        folder: in which they run.
        environment: of its process.
    """

    def __init__(self, python: Path, folder: Path, environment: Mapping[str, str]) -> None:
        command = [str(python), str(Path(__file__).resolve())]
        self._process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, code: str) -> str:
        """What a cell prints, then its last expression, unless that is None; a traceback's last line if it raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        shown: str = json.loads(self._process.stdout.readline())
        return shown

    def close(self) -> None:
        """End the interpreter."""
        self._process.communicate()


def _shown(code: str, names: dict[str, object]) -> str:
    stream = StringIO()
    with redirect_stdout(stream), redirect_stderr(sys.stderr):
        try:
            body = ast.parse(code).body
            last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, type_ignores=[]), "<cell>", "exec"), names)
            if last is not None and (value := eval(compile(last, "<cell>", "eval"), names)) is not None:
                print(repr(value))
        except Exception as error:  # noqa: BLE001 - a page may show an error of any kind
            print(traceback.format_exception_only(error)[-1].strip())
    return stream.getvalue()


def _serve() -> None:
    sys.path.insert(0, "")
    names: dict[str, object] = {"__name__": "__main__"}
    for line in sys.stdin:
        print(json.dumps(_shown(json.loads(line), names)), flush=True)


if __name__ == "__main__":
    _serve()
