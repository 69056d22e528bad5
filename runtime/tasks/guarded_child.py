"""What runs a program under limits, as a process of its own; `guarded_run` starts it, and it imports nothing of ours.

It takes what is asked as JSON on standard input, and says how the program ended on a pipe. A call that is refused ends
it at once, so that no `except` of the program's hides it.
"""

import errno
import json
import os
import resource
import signal
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

# Events that Python tells of a call before it is made. Of those of `os`, all are refused but these.
READING = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.getxattr", "os.listxattr", "os.putenv", "os.unsetenv"}
REFUSED = (
    "os.", "socket.", "subprocess.", "ctypes.", "shutil.", "pty.", "fcntl.", "resource.", "sqlite3.", "syslog.",
    "webbrowser.", "http.", "urllib.", "ftplib.", "smtplib.", "poplib.", "imaplib.", "nntplib.", "telnetlib.",
    "signal.pthread_kill", "winreg.", "_winapi.", "msvcrt.",
)  # fmt: skip
# Modules whose calls make processes, memory or files without an event, or interpreters without this hook.
WITHOUT_EVENTS = {
    "_ctypes", "_posixsubprocess", "_posixshmem", "_multiprocessing", "_dbm", "_gdbm", "readline",
    "_xxsubinterpreters", "_interpreters", "_testcapi", "_testinternalcapi",
}  # fmt: skip
TAKEN_AWAY = ("chroot", "mkfifo", "mknod", "pidfd_open", "setns", "unshare")  # of os; no event tells of them
LOW_LEVEL_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def lowered(kind: int, most: int, hard: int | None = None) -> None:
    """Limit a resource of this process, never above what it has."""
    had = resource.getrlimit(kind)[1]
    soft, last = (value if had == resource.RLIM_INFINITY else min(value, had) for value in (most, hard or most))
    resource.setrlimit(kind, (soft, last))


def set_limits(asked: dict[str, Any]) -> None:
    """Limit seconds, memory, sizes and numbers of files, and processes."""
    signal.setitimer(signal.ITIMER_REAL, asked["wall_s"] + 1)  # should nobody be left to end it at the deadline
    lowered(resource.RLIMIT_CPU, asked["cpu_s"], asked["cpu_s"] + 1)
    if sys.platform != "darwin":  # which takes the limit and does not keep to it
        lowered(resource.RLIMIT_AS, asked["memory_bytes"])
    lowered(resource.RLIMIT_FSIZE, asked["file_bytes"])
    lowered(resource.RLIMIT_NOFILE, 32)
    lowered(resource.RLIMIT_NPROC, 0)
    lowered(resource.RLIMIT_CORE, 0)


def hook_of(end: Callable[[str], NoReturn], home: str, most_files: int) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that ends the process for what a program has no use for.

    Args:
        end: says how it ended, and ends it.
        home: folder in which files may be written, resolved.
        most_files: opened for writing.
    """
    files = 0
    resolved, join = os.path.realpath, os.path.join
    read, refused, modules = frozenset(READING), REFUSED, frozenset(WITHOUT_EVENTS)

    def writes(path: object, mode: object, flags: object) -> bool:
        if mode is None:
            return bool(isinstance(flags, int) and flags & LOW_LEVEL_WRITES)
        return not isinstance(mode, str) or any(letter in mode for letter in "wax+")

    def within(path: object, mode: object) -> bool:
        # Other types could say one path here and another one to the system; os.open could be told of another folder.
        if mode is None or type(path) not in (str, bytes):
            return False
        return resolved(os.fsdecode(path)).startswith(join(home, ""))  # type: ignore[arg-type]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal files
        if event == "open" and writes(*args):
            if not within(*args[:2]):
                end("refused call")
            files += 1
            if files > most_files:
                end("disk")
        elif (event == "import" and args[0] in modules) or (event.startswith(refused) and event not in read):
            end("refused call")

    return hook


def ended(program: str) -> str:
    """Run a program; how it ended."""
    answer = types.ModuleType("answer")
    sys.modules["answer"] = answer  # dataclasses look for the module of a class
    try:
        exec(compile(program, "<answer>", "exec"), answer.__dict__)
    except MemoryError:
        return "memory"
    except OSError as error:
        return "disk" if error.errno == errno.EFBIG else "failed"
    except BaseException:  # noqa: BLE001 - SystemExit too is no pass
        return "failed"
    return "passed"


def main() -> None:
    """Run what standard input asks for."""
    asked = json.loads(sys.stdin.read())
    write, leave, report = os.write, os._exit, asked["report"]
    kinds = ("passed", "failed", "memory", "disk", "refused call")
    lines = {kind: f"{asked['secret']} {kind}\n".encode() for kind in kinds}  # memory may be short when one is said

    def end(kind: str) -> NoReturn:
        write(report, lines[kind])
        leave(0)

    program = asked["program"]
    set_limits(asked)
    for name in TAKEN_AWAY:
        for module in (os, sys.modules["posix"]):
            module.__dict__.pop(name, None)
    sys.addaudithook(hook_of(end, os.path.realpath("."), asked["most_files"]))
    asked.clear()
    end(ended(program))


if __name__ == "__main__":
    main()
