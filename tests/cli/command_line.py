"""Runs `paceline` in this process, as its own main does."""

import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from unittest.mock import patch

from paceline.cli import app
from paceline.cli.errors import run_command

from ..progress import without_progress

command = cache(app.command)  # one for all tests of a process


@dataclass
class Ran:
    """What a command said; `err` without its progress, which `told` has."""

    code: int
    out: str
    err: str
    told: str


def paceline(*args) -> Ran:
    out, err = StringIO(), StringIO()
    argv = ["paceline", *map(str, args)]
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        code = run_command(command())
    return Ran(code, out.getvalue(), without_progress(err.getvalue()), err.getvalue())


def with_own(usual, options) -> tuple:
    """Options of a test, and before them the usual ones, names and values in turn, that it does not give itself."""
    kept = [pair for pair in zip(usual[::2], usual[1::2], strict=True) if pair[0] not in options]
    return (*(word for pair in kept for word in pair), *options)


def done(*args) -> str:
    """What it printed; it must have gone well, and said nothing on the side."""
    ran = paceline(*args)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def refused(*args) -> str:
    """The one line that says why it was refused."""
    ran = paceline(*args)
    assert ran.code == 2, ran
    assert ran.out == ""
    assert ran.err.startswith("paceline: error: ")
    assert ran.err.count("\n") == 1
    assert ran.err.endswith("\n")
    assert "Traceback" not in ran.err
    return ran.err.removeprefix("paceline: error: ").strip()


def run(command, folder, **environment) -> str:
    """What a process printed; it must have gone well."""
    given = {"cwd": folder, "env": {**os.environ, **environment}, "capture_output": True, "text": True}
    ran = subprocess.run(list(map(str, command)), check=False, **given)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout
