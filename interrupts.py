"""Interrupts that wait: Ctrl-C, or an order to end, is heard where there is something whole to be kept."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_SOON_S = 0.01


class Interrupts:
    """Whether an interrupt came. Final."""

    def __init__(self) -> None:
        self._num_heard = 0

    def heard(self) -> bool:
        """Whether one came since the beginning."""
        return self._num_heard > 0

    def _note(self, *_: int | FrameType | None) -> None:
        self._num_heard += 1
        if self._num_heard > 1:  # nobody looks: what runs may never end
            raise KeyboardInterrupt


@contextmanager
def held_interrupts() -> Iterator[Interrupts]:
    """The first interrupt is noted, for whoever looks; a second one raises KeyboardInterrupt, wherever that is.

    In other threads than the main one nothing is held, and nothing heard: signals are not theirs.
    """
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
    """Raise once more, and soon, the interrupts that Python drops because they came in a destructor or callback.

    Imports have such callbacks. Without this a Ctrl-C that comes there prints "Exception ignored", and nothing ends.

    Args:
        handler: of interrupts that are ignored since the first one; it is set again.
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
        # From another thread, as what is raised in this hook is dropped like the first.
        again = threading.Timer(_SOON_S, raise_later)
        again.daemon = True
        again.start()

    sys.unraisablehook = note
    try:
        yield
    finally:
        sys.unraisablehook = before
