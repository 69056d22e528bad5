"""One clear line and an exit code instead of a traceback."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from ..foreign_code import raised_at, said
from ..foreign_text import escaped
from ..interrupts import interrupts_of_callbacks
from .commands_by_name import CommandByName
from .ranks import is_heard, lost_rank, one_voice

BAD_INPUT = 2
INTERRUPTED = 130

LONGEST_WORD, LONGEST_LINE = 240, 1000  # characters of an error; what is longer is a value, and loses its middle
_GAP = " ... "


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """A command was interrupted and has kept what was finished; the message says what."""


def run_command(command: Callable[..., object]) -> int:
    """Run a command line and return its exit code.

    Bad input (any ValueError, a broken policy, a file that cannot be read) prints one line and gives 2. Set
    PACELINE_TRACEBACK=1 to see where it came from.
    """
    return _flushed(_code_of(command))


def _code_of(command: Callable[..., object]) -> int:
    try:
        with one_interrupt(), one_voice():
            result = command(standalone_mode=False)
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted", INTERRUPTED)
    except Interrupted as stop:
        return _say(f"interrupted: {stop}", INTERRUPTED)
    except typer.TyperException as error:
        return _refuse_usage(error)
    except BaseException as error:  # noqa: BLE001 - raised again unless there is a line to say
        # Up to Python 3.11 an interrupt while a class is made, as imports do, comes as the cause of a RuntimeError.
        if type(error.__cause__) is KeyboardInterrupt:
            return _say("interrupted", INTERRUPTED)
        return _failed(error, command)
    if result == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
        return _say("interrupted", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _failed(error: BaseException, command: Callable[..., object]) -> int:
    """Say what was wrong with the input; an error of ours is raised again."""
    # Only now: what bad input comes to, pydantic and the engine know, for which no command that goes well shall wait.
    from .bad_input import BAD, told  # noqa: PLC0415

    wanted = os.environ.get("PACELINE_TRACEBACK")
    if isinstance(error, BAD):
        if wanted:
            raise error
        return _say(told(error, _options_of(command)), BAD_INPUT)
    lost = lost_rank(error)  # ours, unless it came through a file of the user: a rule or a stop of his own
    if lost is not None:
        return _say(lost, BAD_INPUT)
    place = raised_at(error, installed=False)
    if wanted or place is None:
        raise error
    return _say(f"{type(error).__name__}: {said(error)} ({place})", BAD_INPUT)


def _flushed(code: int) -> int:
    """The code, if what was printed arrived: a full disk is told here, and not by the interpreter at its end."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - the interpreter flushes once more
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # whoever read has read enough
            return code or 1
        return code or _say(f"standard output: {error.strerror}", BAD_INPUT)
    return code


@contextmanager
def one_interrupt() -> Iterator[None]:
    """The first Ctrl-C, or order to end, interrupts; further ones are ignored, so that what is finished is written."""
    if threading.current_thread() is not threading.main_thread():  # others have no say in signals
        yield
        return

    numbers = (signal.SIGINT, signal.SIGTERM)

    def interrupt(*_: int | FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        with interrupts_of_callbacks(interrupt):
            yield
    finally:
        for number, handler in before:
            if signal.getsignal(number) is interrupt:
                signal.signal(number, handler)


def _refuse_usage(error: typer.TyperException) -> int:
    """A wrong option or argument; a group called without a command shows its help instead."""
    if type(error).__name__ == "NoArgsIsHelpError":  # the class itself is private to typer
        sys.stderr.write(error.format_message() + "\n")
        return BAD_INPUT
    return _say(error.format_message().replace("Value error, ", "", 1), BAD_INPUT)  # as pydantic begins


def _options_of(command: Callable[..., object]) -> frozenset[str]:
    """Options of the subcommand that was called which are called as its function's arguments."""
    called = getattr(command, "commands", {}).get(next(iter(sys.argv[1:]), ""))
    made = called.make() if isinstance(called, CommandByName) else called
    params = getattr(made, "params", ())
    return frozenset(param.name for param in params if f"--{param.name.replace('_', '-')}" in param.opts)


def _say(message: str, code: int) -> int:
    if is_heard(interrupted=code == INTERRUPTED):
        sys.stderr.write(f"paceline: error: {one_line(message)}\n")
        sys.stderr.flush()
    return code


def one_line(message: str) -> str:
    """A message without line breaks and other control characters, and of a length that can be read."""
    words = [_cut(word, LONGEST_WORD) for word in escaped(message).split()]
    return _cut(" ".join(words), LONGEST_LINE)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - len(_GAP) - end]}{_GAP}{text[-end:]}"
