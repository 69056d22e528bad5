"""Progress of long stages: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 30.0


class StageReport:
    """Receives the position of one stage; final."""

    def __init__(self, stage: str, total: int, bar: Progress | None) -> None:
        """Show `stage` of `total` units on `bar`, or as lines where there is no bar."""
        self._stage = stage
        self._total = total
        self._bar = bar
        self._task = bar.add_task(stage, total=total) if bar is not None else None
        self._line_at_s = time.monotonic()

    def advance_to(self, done: int, note: str = "") -> None:
        """Show that `done` units are finished."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, description=f"{self._stage} {note}")
            return
        now_s = time.monotonic()
        if now_s - self._line_at_s >= SECONDS_BETWEEN_LINES or done == self._total:
            self._line_at_s = now_s
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {self._stage} {done}/{self._total} {note}\n")
            sys.stderr.flush()


@contextmanager
def report_stage(stage: str, total: int) -> Iterator[StageReport]:
    """Open the report of one stage on stderr."""
    if not sys.stderr.isatty():
        yield StageReport(stage, total, None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield StageReport(stage, total, bar)
