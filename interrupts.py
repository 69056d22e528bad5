"""Interrupts that wait: Ctrl-C, or an order to end, is heard where there is something whole to be kept."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


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
