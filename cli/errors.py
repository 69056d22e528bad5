"""One clear line and an exit code instead of a traceback.

Also wraps standard output: spelled in characters that a terminal shows, or kept free for `--json -`.
"""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import TextIOBase
from pathlib import Path
from types import FrameType
from typing import TextIO, cast

import typer

from ..base.errors import escaped, raised_at, said
from ..base.terminal import draws_boxes, interrupts_of_callbacks, shown_in
from .app import CommandByName, is_heard, lost_rank, one_voice

BAD_INPUT = 2
INTERRUPTED = 130

LONGEST_WORD, LONGEST_LINE = 240, 1000  # characters of an error; longer ones are values and lose their middle
_GAP = " ... "


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """A command was interrupted and has kept what was finished; the message says what."""


@contextmanager
def nothing_kept(shorter: str) -> Iterator[None]:
    """A command that keeps nothing when interrupted says so, and names the options that make it `shorter`."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"nothing is kept; {shorter} make it shorter") from None


def run_command(command: Callable[..., object]) -> int:
    """Run a command line and return its exit code.

    Bad input (any ValueError, a broken policy, a file that cannot be read) prints one line and gives 2.
    PACELINE_TRACEBACK=1 shows the traceback.
    """
    came: list[int] = []
    # An async method of a plug-in is refused in one line, as all that it may return.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    try:
        with one_interrupt(came), one_voice():
            result = command(standalone_mode=False)
        code = result if isinstance(result, int) else 0
        if code == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            raise KeyboardInterrupt
    except typer.Exit as stop:
        code = stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = _say("interrupted", INTERRUPTED)
    except Interrupted as stop:
        code = _say(f"interrupted: {stop}", INTERRUPTED)
    except typer.TyperException as error:
        code = _refuse_usage(error)
    except BaseException as error:  # noqa: BLE001 - raised again unless there is a line to print
        # Libraries turn an interrupt into other errors, as Python 3.11 does while a class is created.
        hidden = came and not os.environ.get("PACELINE_TRACEBACK")
        code = _say("interrupted", INTERRUPTED) if hidden else _failed(error, command)
    return _flushed(code)


def _failed(error: BaseException, command: Callable[..., object]) -> int:
    """Print what was wrong with the input; an error of ours is raised again."""
    # Imported only now: it needs pydantic and the engine, which no successful command must wait for.
    from .bad_input import BAD, told  # noqa: PLC0415

    wanted = os.environ.get("PACELINE_TRACEBACK")
    if isinstance(error, BAD):
        if wanted:
            raise error
        # A command of a missing package has no options.
        own = {} if isinstance(error, ModuleNotFoundError) else _called_by(command)
        return _say(told(error, own), BAD_INPUT)
    lost = lost_rank(error)  # ours, unless it came through a file of the user: a rule or a stop of his own
    if lost is not None:
        return _say(lost, BAD_INPUT)
    place = raised_at(error, installed=False)
    if wanted or place is None:
        raise error
    return _say(f"{type(error).__name__}: {said(error)} ({place})", BAD_INPUT)


def _flushed(code: int) -> int:
    """The code, if standard output could be flushed: a full disk is reported here, not by the interpreter at exit."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - the interpreter flushes once more
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe
            return code or 1
        return code or _say(f"standard output: {error.strerror}", BAD_INPUT)
    return code


@contextmanager
def one_interrupt(came: list[int]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM interrupts; further ones are ignored, so that finished results are written.

    `came` receives the number of the signal that interrupted.
    """
    if threading.current_thread() is not threading.main_thread():  # other threads cannot set signal handlers
        yield
        return

    numbers = (signal.SIGINT, signal.SIGTERM)

    def interrupt(number: int, _: FrameType | None) -> None:
        came.append(number)
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)
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
    from .bad_input import told_usage  # noqa: PLC0415 - as above

    return _say(told_usage(error), BAD_INPUT)


def _called_by(command: Callable[..., object]) -> dict[str, str]:
    """Names that users see of the called subcommand's parameters: options, or arguments."""
    called = getattr(command, "commands", {}).get(next(iter(sys.argv[1:]), ""))
    made = called.make() if isinstance(called, CommandByName) else called
    found = {}
    for param in getattr(made, "params", ()):
        option = f"--{param.name.replace('_', '-')}"
        if param.param_type_name == "argument":
            found[param.name] = (param.metavar or param.name.upper()).removesuffix("...")
        elif option in param.opts:
            found[param.name] = option
    return found


def _say(message: str, code: int) -> int:
    if is_heard(interrupted=code == INTERRUPTED):
        sys.stderr.write(f"paceline: error: {one_line(message)}\n")
        sys.stderr.flush()
    return code


def one_line(message: str) -> str:
    """A message without line breaks and other control characters, cut to a readable length."""
    words = [_cut(word, LONGEST_WORD) for word in escaped(message).split()]
    return _cut(" ".join(words), LONGEST_LINE)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - len(_GAP) - end]}{_GAP}{text[-end:]}"


class PassedOn(TextIOBase):
    """A text stream that passes text on to another; it has no `buffer`, so that nothing can bypass it.

    `to` gives the other at each use. Characters beyond `encoding`, a subset of its own, are spelled in those of it.
    """

    encoding = ""  # a class attribute hides the one of TextIOBase, which cannot be set

    def __init__(self, to: Callable[[], TextIO], encoding: str) -> None:
        self.encoding = encoding
        self._to = to

    def write(self, text: str) -> int:
        """Write `text`, spelled in the encoding; returns the length of `text`."""
        self._to().write(shown_in(text, self.encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._to().flush()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._to().isatty()

    def fileno(self) -> int:
        """The stream's own."""
        return self._to().fileno()

    def writable(self) -> bool:
        """Always."""
        return True


class StdoutForJson(PassedOn):
    """Stands in for `sys.stdout`, kept as `json`, and writes to `sys.stderr`: a user's policy may print."""

    def __init__(self, json: TextIO) -> None:
        super().__init__(lambda: sys.stderr, sys.stderr.encoding or "utf-8")
        self.json = json


def keep_for_json(context: typer.Context, path: Path | None) -> Path | None:
    """Callback of `--json`: with `-`, nothing else reaches standard output until the command ends."""
    if str(path) == "-" and not isinstance(sys.stdout, StdoutForJson):
        context.with_resource(redirect_stdout(StdoutForJson(sys.stdout)))
    return path


def json_stream() -> TextIO:
    """Where `--json -` is written."""
    return sys.stdout.json if isinstance(sys.stdout, StdoutForJson) else sys.stdout


@contextmanager
def showable_output() -> Iterator[None]:
    """Wrap standard output and error within the context, where they cannot show all that we print."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_showable(stream, os.environ) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _showable(stream: TextIO, environment: Mapping[str, str]) -> TextIO:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if draws_boxes(encoding) and (environment.get("PYTHONIOENCODING") or not _asks_for_ascii(environment)):
        return stream
    return cast(TextIO, PassedOn(lambda: stream, "ascii" if draws_boxes(encoding) else encoding))


def _asks_for_ascii(environment: Mapping[str, str]) -> bool:
    """Whether the locale was set to C. Python still writes UTF-8 (PEP 540), which the terminal may not show.

    LANG and LC_CTYPE do not count: C is their default, and Python replaces it (PEP 538).
    """
    return environment.get("LC_ALL") in ("C", "POSIX")
