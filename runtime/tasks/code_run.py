"""Tests of code that a model wrote, run under limits; the verdict is that of a process which never held the code.

Two processes take part, `code_process` says how. What is promised, and what is not, is in docs/code-tests.md.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal, get_args

from ...arguments import ArgumentError
from . import code_process
from .code_tests import CodeTests
from .sandbox import call_filter, check_sandbox, sandboxed

Failure = Literal["failed", "timed out", "memory", "disk", "not plain data"]
FAILURES: tuple[Failure, ...] = get_args(Failure)
_SOURCE = Path(code_process.__file__).read_text(encoding="utf-8")
_BY_STATUS: dict[int, Failure | None] = {
    code_process.PASSED: None,
    code_process.MEMORY: "memory",
    code_process.DISK: "disk",
    code_process.NOT_DATA: "not plain data",
}
_LIMIT_SIGNALS = (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL) if os.name == "posix" else ()
_AT_A_LIMIT = {status for number in _LIMIT_SIGNALS for status in (-number, 128 + number)}  # the latter by bubblewrap


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of each of the two processes.

    Attributes:
        wall_s: after which both are ended, > 0.
        cpu_s: seconds of processors that it may take, >= 1.
        memory_bytes: of addresses; not kept on macOS.
        file_bytes: of each file that it writes.
        folder_bytes: of all files that it writes; not kept without a sandbox.
        sandbox: whether they are kept apart from the machine.
    """

    wall_s: float = 10.0
    cpu_s: int = 3
    memory_bytes: int = 512 * 2**20
    file_bytes: int = 2**20
    folder_bytes: int = 4 * 2**20
    sandbox: bool = True


def check_can_run(limits: Limits) -> None:
    """Raise ArgumentError where tests cannot be run and limited, before an hour of answers waits for it."""
    if os.name != "posix":
        raise ArgumentError(f"`run_tests` needs the limits of a POSIX system, got {os.name}")
    if limits.sandbox:
        check_sandbox()
    trial = CodeTests(entry_point="one", code="def one():\n", check="assert one() == 1")
    found = failure_of(trial, "    return 1\n", limits)
    if found is not None:
        raise ArgumentError(f"`run_tests` needs {sys.executable} to pass an empty test under limits, got {found!r}")


def failure_of(tests: CodeTests, answer: str, limits: Limits) -> Failure | None:
    """Run the tests of an answer; None if they ended without an exception.

    Each process gets the standard library alone, an empty folder, no environment and no input, and nobody reads what it
    prints. At the deadline both are killed.

    Raises:
        OSError: no process or folder can be made.
    """
    entry = {"entry_point": tests.entry_point}
    with ExitStack() as running:
        deadline = monotonic() + limits.wall_s
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        asked = {**entry, "program": tests.program(answer)}
        holder = running.enter_context(_started("answer", asked, limits, pipes))
        pipes = {"stdin": holder.stdout, "stdout": holder.stdin}
        asked = {**entry, "program": tests.head(), "check": tests.check}
        tester = running.enter_context(_started("tests", asked, limits, pipes))
        for end in (holder.stdin, holder.stdout):
            assert end is not None
            end.close()
        try:
            status = tester.wait(limits.wall_s)
            if status == code_process.GONE:  # the answer's process ended; how, its own status says
                status = holder.wait(max(0.0, deadline - monotonic()))
                status = status if status in _AT_A_LIMIT else code_process.FAILED
        except subprocess.TimeoutExpired:
            return "timed out"
    return "timed out" if status in _AT_A_LIMIT else _BY_STATUS.get(status, "failed")


@contextmanager
def _started(
    role: str, asked: dict[str, str], limits: Limits, pipes: dict[str, Any]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in one of the roles of `code_process`, in an empty folder; it is killed when the block ends."""
    with ExitStack() as kept:
        told = kept.enter_context(_file(json.dumps(asdict(limits) | asked).encode()))
        command = [os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", _SOURCE, role, str(told)]
        handed = [told]
        if limits.sandbox:
            calls = kept.enter_context(_file(call_filter()))
            handed.append(calls)
            bwrap = shutil.which("bwrap") or "bwrap"
            command = sandboxed(command, bwrap, filter_fd=calls, folder_bytes=limits.folder_bytes)
        folder = kept.enter_context(tempfile.TemporaryDirectory(prefix="paceline-tests-"))
        process = subprocess.Popen(
            command, stderr=subprocess.DEVNULL, cwd=folder, env={}, pass_fds=handed, start_new_session=True, **pipes
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError, PermissionError):  # the latter on macOS, of a group that has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for end in (process.stdin, process.stdout):
                if end is not None:
                    end.close()


@contextmanager
def _file(content: bytes) -> Iterator[int]:
    """An open file without a name, to be read from its beginning."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()
