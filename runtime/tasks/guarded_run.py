"""Code that a model wrote, run in a process of its own: limited in what it may take, and refused what it may not do.

It is a guard against code that is wrong, not a sandbox against code that is meant to get out (docs/code-tests.md).
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from ...arguments import ArgumentError

Failure = Literal["failed", "timed out", "memory", "disk", "refused call"]
FAILURES: tuple[Failure, ...] = get_args(Failure)
_CHILD = Path(__file__).with_name("guarded_child.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one program.

    Attributes:
        wall_s: after which it is ended, > 0.
        cpu_s: seconds of processors that it may take, >= 1.
        memory_bytes: of addresses; not kept on macOS.
        file_bytes: of each file that it writes.
        most_files: that it opens for writing, all within a folder that is removed.
    """

    wall_s: float = 10.0
    cpu_s: int = 3
    memory_bytes: int = 512 * 2**20
    file_bytes: int = 2**20
    most_files: int = 8


def check_can_run(limits: Limits) -> None:
    """Raise ArgumentError where programs cannot be run and limited, before an hour of answers waits for it."""
    if os.name != "posix":
        raise ArgumentError(f"`run_tests` needs the limits of a POSIX system, got {os.name}")
    found = failure_of("", limits)
    if found is not None:
        raise ArgumentError(
            f"`run_tests` needs {sys.executable} -I -S to run an empty program under limits, got {found}"
        )


def failure_of(program: str, limits: Limits) -> Failure | None:
    """Run a program in an empty folder, without an environment; None if it ended without an exception.

    Its process gets the standard library alone, no input, and nobody reads its output. At the deadline its whole
    group is killed.

    Raises:
        OSError: no process or folder can be made.
    """
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="paceline-tests-") as folder:
        told, report = os.pipe()
        try:
            asked = {"program": program, "secret": secret, "report": report, **asdict(limits)}
            status = _waited(asked, folder, report, limits.wall_s)
            said = _said(told, secret)
        finally:
            os.close(told)
    if said is not None:
        return next((kind for kind in FAILURES if kind == said), None)
    at_a_limit = (None, -signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL)
    return "timed out" if status in at_a_limit else "failed"


def _waited(asked: dict[str, object], folder: str, report: int, wall_s: float) -> int | None:
    """The exit status of a child that was asked; None if it had to be killed. Closes `report`."""
    command = [sys.executable, "-I", "-S", "-B", str(_CHILD)]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, env={},
            pass_fds=(report,), start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(report)
    try:
        child.communicate(json.dumps(asked).encode(), timeout=wall_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError, PermissionError):  # the latter on macOS, of a group that has ended
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        with suppress(BrokenPipeError):
            assert child.stdin is not None
            child.stdin.close()
    return child.returncode


def _said(told: int, secret: str) -> str | None:
    """What the child said of how the program ended; None if nothing."""
    os.set_blocking(told, False)  # a process that got away might hold the other end
    with suppress(BlockingIOError):
        for line in os.read(told, 4096).decode(errors="replace").splitlines():
            if line.startswith(f"{secret} "):
                return line.removeprefix(f"{secret} ")
    return None
