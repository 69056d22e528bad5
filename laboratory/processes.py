"""Processes for long work: they hear no Ctrl-C, which is for whoever asked, and end with whoever asked."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread


@contextmanager
def process_executor(num: int) -> Iterator[ProcessPoolExecutor]:
    """An executor of so many processes; at the end of the block they are ended, whatever they are at."""
    before = set(active_children())
    executor = ProcessPoolExecutor(num, get_context("spawn"), initializer=_begin)
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which processes that begin now keep
    try:
        for _ in range(num):
            executor.submit(int)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - before:
            process.terminate()
        executor.shutdown()


def _begin() -> None:
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    wait([parent.sentinel for parent in (parent_process(),) if parent])
    os._exit(1)
