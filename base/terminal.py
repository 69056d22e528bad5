"""Progress and interrupts of a command, and the characters that its terminal can show.

Ctrl-C and SIGTERM wait while a file or a result must be completed. Progress is a bar where standard error is a
terminal, else a line every ten seconds; nothing goes to standard output. Characters that a screen cannot show become
ASCII lookalikes where there are some, else escapes.
"""

import signal
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from threading import Event, Thread
from types import FrameType, TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Column

from .errors import escaped

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_SOON_S = 0.01


class Interrupts:
    """Whether an interrupt came. Final."""

    def __init__(self) -> None:
        self._num_heard = 0

    def heard(self) -> bool:
        """Whether one came so far."""
        return self._num_heard > 0

    def _note(self, *_: int | FrameType | None) -> None:
        self._num_heard += 1
        if self._num_heard > 1:  # the code may be in an endless loop that does not check
            raise KeyboardInterrupt


@contextmanager
def held_interrupts() -> Iterator[Interrupts]:
    """Notes the first interrupt, to be polled; a second one raises KeyboardInterrupt. Main thread only."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = [(number, signal.signal(number, interrupts._note)) for number in _NUMBERS]
    try:
        yield interrupts
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def interrupts_of_callbacks(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Raise again, soon, the interrupts that Python drops because they came in a destructor or callback.

    Imports have such callbacks: without this a Ctrl-C there prints "Exception ignored", and nothing ends. If interrupts
    are ignored since the first, `handler` is set again.
    """
    before, ours = sys.unraisablehook, threading.main_thread()

    def raise_later() -> None:
        signal.pthread_kill(ours.ident or 0, signal.SIGINT)

    def note(dropped: "sys.UnraisableHookArgs") -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            before(dropped)
            return
        for number in _NUMBERS:
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, handler)
        # From another thread, as exceptions in this hook are dropped like the first.
        again = threading.Timer(_SOON_S, raise_later)
        again.daemon = True
        again.start()

    sys.unraisablehook = note
    try:
        yield
    finally:
        sys.unraisablehook = before


Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 10.0
_is_quiet = ContextVar("_is_quiet", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Show no progress of stages that begin inside: others show it around them, or seconds are measured."""
    before = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(before)


def tell(line: str) -> None:
    """Write a line to standard error at once, where it is of use before the result; nothing in `quiet`."""
    if not _is_quiet.get():
        _write(line)


def _write(line: str) -> None:
    with suppress(OSError, ValueError):  # standard error is closed
        sys.stderr.write(f"paceline: {line}\n")
        sys.stderr.flush()


class Progress:
    """The progress of one stage; a context manager that shows it while open. Final.

    A thread writes the lines, so that a unit that takes minutes is shown too. A stage that ends within ten seconds
    prints nothing; else the last line says how long it took.

    Args:
        stage: what is done, in words.
        total: number of units, >= 0; None if unknown.
        unit: what is counted, in the plural.
        done: units done before the stage begins, such as by a run that was killed.
        alike: whether units take about as long as each other; if not, the time left is not shown.
        at_most: whether the stage may end before all units are done.
        told_after: units that must be done before the time left is shown, where the first ones may take far longer.
        of_several: whether other stages follow: then the time left is labelled as that of this one.
    """

    def __init__(
        self,
        stage: str,
        total: int | None = None,
        *,
        unit: str = "",
        done: int = 0,
        alike: bool = True,
        at_most: bool = False,
        told_after: int = 0,
        of_several: bool = False,
    ) -> None:
        self._stage, self.total, self._unit = stage, total, unit
        self._alike, self._at_most, self._told_after, self._note = alike, at_most, told_after, ""
        self._of_several = of_several
        self._has_told = False
        self._done: float = done
        self._done_before = done
        self._started_at_s = self._advanced_at_s = time.monotonic()
        self._ended = Event()
        self._teller: Bars | Thread | None = None

    def __enter__(self) -> Self:
        """Begin; says nothing in `quiet()`."""
        self._started_at_s = time.monotonic()
        if not _is_quiet.get():
            console = Console(stderr=True)
            if sys.stderr.isatty() and console.is_interactive:
                self._teller = _bar(console, self)
            else:
                self._teller = Thread(target=self._tell, name=f"progress of {self._stage}", daemon=True)
                self._teller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the stage, also by an error; a bar disappears."""
        self._ended.set()
        if isinstance(self._teller, Bars):
            self._teller.stop()
        elif self._teller is not None:
            self._teller.join()
            if self._has_told and error is None:
                self._write_line()

    def advance(self, count: float = 1) -> None:
        """Count `count` more units as done."""
        self.advance_to(self._done + count)

    def advance_to(self, done: float, note: str | None = None, total: int | None = None) -> None:
        """Set the units done in all, earlier ones included; `note` and `total`, if not None, are shown from now on.

        A part of a unit counts in the time left; whole units are shown.
        """
        if done != self._done:
            self._done, self._advanced_at_s = done, time.monotonic()
        if note is not None:
            self._note = note
        if total is not None:
            self.total = total
        if isinstance(self._teller, Bars):
            self._teller.update(self._teller.task_ids[0], completed=done, total=self.total)

    def note(self, words: str) -> None:
        """Show what is being done; the count stays."""
        self.advance_to(self._done, words)

    @property
    def done(self) -> float:
        """Units that are done."""
        return self._done

    @property
    def line(self) -> str:
        """Everything in one line."""
        taken = in_words(time.monotonic() - self._started_at_s)
        return f"{self._stage}: {', '.join(word for word in (self.counted, self._note, taken, self.left) if word)}"

    @property
    def doing(self) -> str:
        """The stage and its note."""
        return f"{self._stage} {self._note}".rstrip()

    @property
    def counted(self) -> str:
        """The units done; empty where nothing is counted."""
        if self.total is None:
            return f"{int(self._done):,} {self._unit}".rstrip() if self._done else ""
        most = "at most " if self._at_most else ""
        return f"{int(self._done):,} of {most}{self.total:,} {self._unit}".rstrip()

    @property
    def left(self) -> str:
        """The time left at the pace so far; empty if unknown."""
        newly_done = self._done - self._done_before
        too_few = newly_done <= 0 or newly_done < min(self._told_after, (self.total or 0) - self._done_before)
        if not self._alike or self.total is None or too_few or self._done >= self.total:
            return ""
        now_s = time.monotonic()
        pace_s, left = (self._advanced_at_s - self._started_at_s) / newly_done, self.total - self._done
        left_s = pace_s * left - (now_s - self._advanced_at_s)
        if left <= 1 and left_s < 0:
            return ""  # the last unit takes longer than others did: how long is not known
        # An earlier one that does is assumed to be nearly done.
        overdue_s = (now_s - self._started_at_s) / (newly_done + 1) * max(0, left - 1)
        left_s = max(left_s, overdue_s)
        of_stage, at_most = " of this stage" * self._of_several, ", or less" * self._at_most
        return f"about {in_words(left_s)} left{of_stage}{at_most}"

    def _tell(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LINES):
            self._write_line()

    def _write_line(self) -> None:
        self._has_told = True
        _write(self.line)


def _bar(console: Console, progress: Progress) -> Bars:
    doing, counted, left = (
        # A long name is wrapped; numbers would be cut.
        TextColumn(f"{{task.fields[told].{name}}}", markup=False, table_column=Column(no_wrap=name != "doing"))
        for name in ("doing", "counted", "left")
    )
    bar = Bars(doing, BarColumn(bar_width=16), counted, TimeElapsedColumn(), left, console=console, transient=True)
    bar.add_task("", total=progress.total, told=progress)
    bar.start()
    return bar


def tracked(items: Iterable[Item], stage: str, *, total: int | None = None, unit: str = "") -> Iterator[Item]:
    """The items, with progress from the first to the last."""
    with Progress(stage, total, unit=unit) as shown:
        for item in items:
            yield item
            shown.advance()


def in_words(seconds: float) -> str:
    """A span that a person may wait for: `41 s`, `12 min`, `3.2 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@cache
def lookalikes() -> dict[str, str]:
    """ASCII for characters that not every terminal has."""
    return tomllib.loads(files(__package__).joinpath("lookalikes.toml").read_text(encoding="utf-8"))


def shown_in(text: str, encoding: str) -> str:
    """`text` with each character replaced that `encoding` cannot write, or that controls a terminal."""
    text = escaped(text)
    if _writes(text, encoding):
        return text
    return "".join(char if _writes(char, encoding) else _replaced(char, encoding) for char in text)


def draws_boxes(encoding: str) -> bool:
    """Whether the corners and lines of our tables can be written in `encoding`."""
    return _writes("┏━┓┃│└", encoding)


def _writes(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _replaced(char: str, encoding: str) -> str:
    # Escapes are ASCII, which every encoding of a terminal writes.
    return lookalikes().get(char) or char.encode(encoding, "backslashreplace").decode("ascii")
