"""Runs code that a model wrote, isolated and under limits, with the tests that it has to pass.

There are two processes (`code_process`); the verdict is that of the one which never held the code. bubblewrap with a
filter of system calls isolates them from the machine: inside there are Python's standard library and `/usr`, both
read-only, and one empty folder in memory that may be written; no network, no process except its own, no `/proc`, no
environment, no privilege. docs/runtime.md says what is promised, and what is not.
"""

import ast
import errno
import json
import keyword
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import monotonic
from typing import Any, Literal, NamedTuple, get_args

from ..base.errors import ArgumentError
from ..traces.errors import TraceFormatError
from . import code_process

FOLDER = "/work"  # the only writable one
_INSTALL = "bubblewrap 0.8 or newer (on Debian and Ubuntu: apt install bubblewrap)"
_OR_ELSE = "`run_tests` unsandboxed runs what the model wrote with your rights"
# Constants of linux/seccomp.h and linux/bpf_common.h.
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4  # in struct seccomp_data
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_X32 = 0x40000000  # x86-64 has second numbers of calls from here on


class _Machine(NamedTuple):
    """A machine's constant in filters, and the numbers of denied calls by name."""

    mark: int
    calls: Mapping[str, int]


# Calls that make processes, which their limit does not bound for root, and memory that no limit counts.
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        {
            "clone": 56, "fork": 57, "vfork": 58, "clone3": 435,
            "shmget": 29, "semget": 64, "msgget": 68, "memfd_create": 319, "memfd_secret": 447, "io_uring_setup": 425,
        },
    ),
    "aarch64": _Machine(
        0xC00000B7,
        {
            "clone": 220, "clone3": 435,
            "shmget": 194, "semget": 190, "msgget": 186, "memfd_create": 279, "memfd_secret": 447,
            "io_uring_setup": 425,
        },
    ),
}  # fmt: skip


def check_sandbox() -> None:
    """Raise ArgumentError, with what to install, where no sandbox can be made."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        raise ArgumentError(
            f"`run_tests` needs Linux on {' or '.join(_MACHINES)} for its sandbox, got {sys.platform} on "
            f"{platform.machine()}; {_OR_ELSE}"
        )
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise ArgumentError(f"`run_tests` needs {_INSTALL}, found no bwrap; {_OR_ELSE}")
    python = sandboxed([os.path.realpath(sys.executable), "-I", "-S", "-c", ""], bwrap, filter_fd=None, folder_bytes=1)
    tried = subprocess.run(python, env={}, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if tried.returncode:
        said = tried.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {tried.returncode}"]
        raise ArgumentError(
            f"`run_tests` needs {_INSTALL} that may make namespaces, {bwrap} says {said[-1]!r}; {_OR_ELSE}"
        )


def sandboxed(command: list[str], bwrap: str, *, filter_fd: int | None, folder_bytes: int) -> list[str]:
    """A command as bubblewrap (`bwrap`) runs it; its first word is a Python.

    `filter_fd` is an open file with `call_filter`, None: without. `folder_bytes` may be written in all, in `FOLDER`.
    """
    words = [bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--die-with-parent"]
    words += ["--uid", "65534", "--gid", "65534", "--clearenv", "--ro-bind", "/usr", "/usr"]
    for path in map(Path, ("/lib", "/lib64")):
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    # Not its whole prefix, which may be a user's home.
    for path in (Path(command[0]), Path(sysconfig.get_path("stdlib")).parent):
        if not path.is_relative_to("/usr"):
            words += ["--ro-bind", str(path), str(path)]
    words += ["--dev-bind", os.devnull, os.devnull, "--size", str(folder_bytes), "--tmpfs", FOLDER, "--remount-ro", "/"]
    words += ["--chdir", FOLDER] + ([] if filter_fd is None else ["--seccomp", str(filter_fd)])
    return [*words, "--", *command]


def call_filter() -> bytes:
    """A program of the kernel's packet filter that denies this machine's listed calls with EPERM."""
    machine = _MACHINES[platform.machine()]
    numbers = sorted(machine.calls.values())
    lines = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, machine.mark),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    # Each comparison jumps over the remaining ones, and the instruction that allows, to the last one.
    left = len(numbers) + 1
    lines.append((_AT_LEAST, left, 0, _X32))
    lines += [(_EQUAL, left - place, 0, number) for place, number in enumerate(numbers, start=1)]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)(?:^```|\Z)", re.MULTILINE | re.DOTALL)  # one may be cut short
_PYTHON = ("", "py", "python", "python3")
# Where a completion of a function ends: the stop texts of Chen et al. 2021, arXiv:2107.03374, section 2.1.
_BEYOND = re.compile(r"\n(?=class|def|#|if|print|```)")
_BODY = re.compile(r"\n*[ \t]+\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """The tests of code that is written for a prompt."""

    entry_point: str  # the requested function
    code: str  # the code before it and its head, which an answer may continue
    check: str  # a program that ends without an exception if the function, defined before it, is right

    def program(self, answer: str) -> str:
        """An answer as a program that defines the function."""
        return f"{self.code}{self._written(answer)}\n"

    def head(self) -> str:
        """`code` as a program of its own, with its other functions and imports.

        Raises:
            ValueError: it is not valid, whatever the function's body.
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

        Of a dialogue's answer it is the first block of Python that defines the function. An answer without one
        continues `code`, up to the next statement at the left margin; if it does not begin like a function's body, and
        defines the function, it is that definition.
        """
        defines = re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{self.entry_point}\b", re.MULTILINE)
        for name, block in _BLOCK.findall(answer):
            if name.lower() in _PYTHON and defines.search(block):
                return "\n\n" + textwrap.dedent(block)
        found = None if _BODY.match(answer) else defines.search(answer)
        return _BEYOND.split(answer if found is None else answer[found.start() :].lstrip(), maxsplit=1)[0]


def read_tests(path: Path, where: str, value: object) -> CodeTests:
    """The tests in a prompts file; raises TraceFormatError."""
    names = [field.name for field in fields(CodeTests)]
    if not isinstance(value, dict) or sorted(value) != sorted(names):
        raise TraceFormatError(path, where, f"must be an object of {', '.join(names)}", value)
    for name in names:
        if not isinstance(value[name], str) or not value[name].strip():
            raise TraceFormatError(path, f"{where}, {name}", "must be a text that is not blank", value[name])
    if not value["entry_point"].isidentifier() or keyword.iskeyword(value["entry_point"]):
        raise TraceFormatError(path, f"{where}, entry_point", "must be the name of a function", value["entry_point"])
    return CodeTests(**value)


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
_AT_A_LIMIT = {status for number in _LIMIT_SIGNALS for status in (-number, 128 + number)}  # the second by bubblewrap


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """Limits of each of the two processes."""

    wall_s: float = 10.0  # after which both are ended, > 0
    cpu_s: int = 3  # seconds of processors that it may take, >= 1
    memory_bytes: int = 512 * 2**20  # of addresses; not enforced on macOS
    file_bytes: int = 2**20  # of each file that it writes
    folder_bytes: int = 4 * 2**20  # of all files that it writes; not enforced without a sandbox
    sandbox: bool = True  # whether they are isolated from the machine


def check_can_run(limits: ProcessLimits) -> None:
    """Raise ArgumentError where tests cannot be run and limited; to be called before answers are written."""
    if os.name != "posix":
        raise ArgumentError(f"`run_tests` needs the limits of a POSIX system, got {os.name}")
    if limits.sandbox:
        check_sandbox()
    trial = CodeTests(entry_point="one", code="def one():\n", check="assert one() == 1")
    found = failure_of(trial, "    return 1\n", limits)
    if found is not None:
        raise ArgumentError(f"`run_tests` needs {sys.executable} to pass an empty test under limits, got {found!r}")


def failure_of(tests: CodeTests, answer: str, limits: ProcessLimits) -> Failure | None:
    """Run the tests of an answer; None if they ended without an exception.

    Each process gets the standard library alone, an empty folder, no environment and no input, and its output is
    dropped. At the deadline both are killed.

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
            if status == code_process.GONE:  # the answer's process ended: its own status says why
                status = holder.wait(max(0.0, deadline - monotonic()))
                status = status if status in _AT_A_LIMIT else code_process.FAILED
        except subprocess.TimeoutExpired:
            return "timed out"
    return "timed out" if status in _AT_A_LIMIT else _BY_STATUS.get(status, "failed")


@contextmanager
def _started(
    role: str, asked: dict[str, str], limits: ProcessLimits, pipes: dict[str, Any]
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
            with suppress(ProcessLookupError, PermissionError):  # PermissionError on macOS, for a group that has ended
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
