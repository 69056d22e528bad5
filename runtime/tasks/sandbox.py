"""What keeps code that a model wrote apart from the machine: bubblewrap, with a filter of system calls.

In the sandbox there is Python's standard library and `/usr`, both read-only, and one empty folder in memory that may be
written. There is no network, no process but its own, no `/proc`, no environment, no privilege.
"""

import errno
import os
import platform
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ...arguments import ArgumentError

FOLDER = "/work"  # the one that may be written
_INSTALL = "bubblewrap 0.8 or newer (on Debian and Ubuntu: apt install bubblewrap)"
_OR_ELSE = "`run_tests` unsandboxed runs what the model wrote with your rights"
# Of linux/seccomp.h and linux/bpf_common.h.
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4  # in struct seccomp_data
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_X32 = 0x40000000  # from here on calls of x86-64 have a second number


class _Machine(NamedTuple):
    """Its mark in a filter, and by name the numbers of calls that are refused."""

    mark: int
    calls: Mapping[str, int]


# What makes processes, which a limit of their number does not bound for root, and memory that no limit counts.
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
    """A command as bubblewrap runs it.

    Args:
        command: whose first word is a Python.
        bwrap: the program.
        filter_fd: an open file with `call_filter`; None: without.
        folder_bytes: that may be written in all, in `FOLDER`.
    """
    words = [bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--die-with-parent"]
    words += ["--uid", "65534", "--gid", "65534", "--clearenv", "--ro-bind", "/usr", "/usr"]
    for path in map(Path, ("/lib", "/lib64")):
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    # Not all of its prefix, which may be somebody's home.
    for path in (Path(command[0]), Path(sysconfig.get_path("stdlib")).parent):
        if not path.is_relative_to("/usr"):
            words += ["--ro-bind", str(path), str(path)]
    words += ["--dev-bind", os.devnull, os.devnull, "--size", str(folder_bytes), "--tmpfs", FOLDER, "--remount-ro", "/"]
    words += ["--chdir", FOLDER] + ([] if filter_fd is None else ["--seccomp", str(filter_fd)])
    return [*words, "--", *command]


def call_filter() -> bytes:
    """A program of the kernel's packet filter that refuses the calls of this machine with EPERM."""
    machine = _MACHINES[platform.machine()]
    numbers = sorted(machine.calls.values())
    lines = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, machine.mark),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    # Each comparison jumps over those that are left, and the line that allows, to the last one.
    left = len(numbers) + 1
    lines.append((_AT_LEAST, left, 0, _X32))
    lines += [(_EQUAL, left - place, 0, number) for place, number in enumerate(numbers, start=1)]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
