"""Replay without the cyclic garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the collector, if it runs, for the duration.

    Replay makes no cycles but keeps tens of thousands of small tuples beside the recording's millions of list items;
    walking those again and again takes a third of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
