"""From outcomes to seconds of forwards: the rows of an operation arrive one by one, each with the seconds of all.

A row alone would mislead: in a batch the seconds follow from the widths of all rows, and a draft runs until its longest
row ends. So rows are gathered until the operation is whole.
"""

from ..contract import Outcome, Verify
from .profile import PerformanceProfiler


class OperationTimer:
    """Feeds a profiler with whole operations. Mutated by `note`.

    Args:
        profiler: is told.
    """

    def __init__(self, profiler: PerformanceProfiler) -> None:
        self._profiler = profiler
        self._key: tuple[int, bool, int, float] = (-1, False, 0, 0.0)
        self._rows = 0
        self._fed = 0
        self._longest = 0

    def note(self, level: int, fed: int, outcome: Outcome) -> None:
        """Take in a row that was fed `fed` tokens first."""
        verify = outcome.step.__class__ is Verify
        key = (level, verify, outcome.num_rows, outcome.duration_s)
        if key != self._key:
            self._key = key
            self._rows = self._fed = self._longest = 0
        self._rows += 1
        self._fed += fed
        self._longest = max(self._longest, outcome.num_drafted)
        if self._rows == outcome.num_rows:
            width = max(1, round(self._fed / self._rows))
            if verify:
                self._profiler.note(level, num_rows=self._rows, new_tokens=width, seconds=outcome.duration_s)
            elif self._longest:
                self._draft(level, width, outcome.duration_s)
            self._key = (-1, False, 0, 0.0)

    def _draft(self, level: int, width: int, seconds: float) -> None:
        """The first forward is fed what the caches lack, the others one token a row."""
        rows, count = self._rows, self._longest
        narrow = self._profiler.narrowest_s(level, rows)
        if width <= 2 or (narrow is None and count > 1):
            self._profiler.note(level, num_rows=rows, new_tokens=1, seconds=seconds / count)
        elif narrow is not None and seconds > (count - 1) * narrow:
            self._profiler.note(level, num_rows=rows, new_tokens=width, seconds=seconds - (count - 1) * narrow)
        elif narrow is None:
            self._profiler.note(level, num_rows=rows, new_tokens=width, seconds=seconds)
