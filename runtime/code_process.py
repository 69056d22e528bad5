"""Code of both processes of a run of tests: one holds the answer that is tested, the other the tests.

`sandbox` starts both, by `python -c` of this file's text; so it imports nothing of ours. They exchange lines of JSON:
calls one way, results the other way. Only plain data passes, rebuilt on the other side, so no object of the answer ever
reaches the tests; and the exit status that says "passed" is that of the process which never held it.
"""

import builtins
import errno
import json
import os
import signal
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO

if sys.platform != "win32":  # where `sandbox` refuses to run it, and reads the statuses below
    import resource

# Exit statuses of the process with the tests. Any other one, 0 too, is a failure.
PASSED, FAILED, MEMORY, DISK, NOT_DATA, GONE = range(60, 66)
MOST_BYTES = 2**24  # of a line
MOST_DEPTH = 200  # of data within data
COLLECTIONS = (list, tuple, set, frozenset)


class NotDataError(BaseException):
    """A value that cannot pass as plain data; a test's `except Exception` does not catch it."""


def packed(value: object, depth: int = 0) -> object:
    """Plain data as JSON: [name of its kind, content] for kinds that JSON lacks.

    An object of a derived class passes as its base; raises NotDataError for anything else.
    """
    if depth > MOST_DEPTH:
        raise NotDataError
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes | bytearray):
        return ["bytes" if isinstance(value, bytes) else "bytearray", value.hex()]
    if isinstance(value, range):
        return ["range", value.start, value.stop, value.step]
    if isinstance(value, dict):
        return ["dict", [[packed(key, depth + 1), packed(of, depth + 1)] for key, of in value.items()]]
    if not isinstance(value, COLLECTIONS):
        raise NotDataError
    kind = next(kind for kind in COLLECTIONS if isinstance(value, kind))
    return [kind.__name__, [packed(one, depth + 1) for one in value]]


def unpacked(said: object) -> Any:  # noqa: ANN401 - whatever it is
    """The inverse of `packed`; bad input may raise anything."""
    if not isinstance(said, list):
        return said
    kind, *content = said
    if kind == "dict":
        return {unpacked(key): unpacked(of) for key, of in content[0]}
    if kind in {"bytes", "bytearray"}:
        return (bytes if kind == "bytes" else bytearray).fromhex(content[0])
    if kind in {"complex", "range"}:
        return (complex if kind == "complex" else range)(*content)
    return next(of for of in COLLECTIONS if of.__name__ == kind)(map(unpacked, content[0]))


def put_back(given: tuple[Any, ...], now: tuple[Any, ...]) -> None:
    """Apply the function's changes to its arguments here."""
    for had, after in zip(given, now, strict=True):
        if isinstance(had, list | bytearray):
            had[:] = after
        elif isinstance(had, dict | set):
            had.clear()
            had.update(after)


def lowered(kind: int, most: int, hard: int | None = None) -> None:
    """Limit a resource of this process, never above what it has."""
    had = resource.getrlimit(kind)[1]
    soft, last = (value if had == resource.RLIM_INFINITY else min(value, had) for value in (most, hard or most))
    resource.setrlimit(kind, (soft, last))


def set_limits(asked: dict[str, Any]) -> None:
    """Limit seconds, memory, sizes and numbers of files, and processes."""
    signal.setitimer(signal.ITIMER_REAL, asked["wall_s"] + 1)  # in case no process is left to end it at the deadline
    lowered(resource.RLIMIT_CPU, asked["cpu_s"], asked["cpu_s"] + 1)
    if sys.platform != "darwin":  # which accepts the limit and does not enforce it
        lowered(resource.RLIMIT_AS, asked["memory_bytes"])
    lowered(resource.RLIMIT_FSIZE, asked["file_bytes"])
    lowered(resource.RLIMIT_NOFILE, 32)
    lowered(resource.RLIMIT_NPROC, 0)
    lowered(resource.RLIMIT_CORE, 0)


def hold_answer(asked: dict[str, Any], calls: BinaryIO, replies: BinaryIO) -> None:
    """Define the function, and serve its calls until the pipe closes."""
    answer = types.ModuleType("answer")
    sys.modules["answer"] = answer  # dataclasses look for the module of a class

    def tell(made: Callable[[], list[Any]]) -> None:
        try:
            said = ["value", *made()]
        except NotDataError:
            said = ["not data"]
        except BaseException as error:  # noqa: BLE001 - SystemExit is a failure too
            kinds = [kind.__name__ for kind in type(error).__mro__]
            said = ["raised", kinds, error.errno if isinstance(error, OSError) else None]
        replies.write(json.dumps(said).encode() + b"\n")
        replies.flush()

    def define() -> list[Any]:
        exec(compile(asked["program"], "<answer>", "exec"), answer.__dict__)
        return []

    def called(line: bytes) -> list[Any]:
        args, named = map(unpacked, json.loads(line))
        result = answer.__dict__[asked["entry_point"]](*args, **named)
        return [packed(result), packed(args)]

    tell(define)
    for line in calls:
        tell(partial(called, line))


def run_tests(asked: dict[str, Any], replies: BinaryIO, calls: BinaryIO) -> int:
    """Run the tests of a function that the other process holds; returns an exit status."""

    def told() -> list[Any]:
        # Ends the process for a bad reply: an exception could pass a test that expects one.
        line = replies.readline(MOST_BYTES)
        if not line.endswith(b"\n"):
            os._exit(FAILED if line else GONE)
        try:
            kind, *said = json.loads(line)
            if kind == "value":
                return [unpacked(one) for one in said]
            raised = NotDataError() if kind == "not data" else exception_of(*said)
        except BaseException:  # noqa: BLE001 - a bad reply may raise anything
            os._exit(FAILED)
        raise raised

    def function(*args: object, **named: object) -> object:
        calls.write(json.dumps([packed(args), packed(named)]).encode() + b"\n")
        calls.flush()
        result, now = told()
        put_back(args, now)
        return result

    try:
        told()
        tests = types.ModuleType("tests")
        sys.modules["tests"] = tests
        exec(compile(asked["program"], "<code>", "exec"), tests.__dict__)
        tests.__dict__[asked["entry_point"]] = function
        exec(compile(asked["check"], "<check>", "exec"), tests.__dict__)
    except MemoryError:
        return MEMORY
    except NotDataError:
        return NOT_DATA
    except OSError as error:
        return DISK if error.errno in {errno.EFBIG, errno.ENOSPC, errno.EDQUOT} else FAILED
    except BaseException:  # noqa: BLE001 - SystemExit is a failure too
        return FAILED
    return PASSED


def exception_of(kinds: list[str], number: int | None) -> BaseException:
    """The answer's exception, as the first of its classes that is Python's own and can be made here."""
    for name in kinds:
        kind = vars(builtins).get(name)
        if isinstance(kind, type) and issubclass(kind, OSError) and number is not None:
            return OSError(number, "raised by the answer")  # Python chooses the class by the number
        if isinstance(kind, type) and issubclass(kind, BaseException):
            try:
                return kind("raised by the answer")
            except TypeError:  # UnicodeDecodeError needs more arguments
                continue
    raise ValueError


def main(role: str, asked_fd: int) -> None:
    """Play one of the roles; `asked_fd` is an open file with its input."""
    with os.fdopen(asked_fd, "rb") as file:
        asked = json.loads(file.read())
    sys.set_int_max_str_digits(0)
    reading, writing, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)  # what programs print is dropped
    set_limits(asked)
    with os.fdopen(reading, "rb") as received, os.fdopen(writing, "wb") as sent:
        if role == "answer":
            hold_answer(asked, received, sent)
        else:
            os._exit(run_tests(asked, received, sent))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
