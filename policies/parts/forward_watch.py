"""Watches what the load tells of operations, and tells the profiler what forwards took at their batch and context.

The load tells of whole operations, prefills and their chunks among them, which no single request knows of.
"""

from collections.abc import Sequence

from ...decoding.observation import Load
from .performance_profiler import PerformanceProfiler


class ForwardWatch:
    """Feeds a profiler. Mutated by `look`.

    Args:
        profiler: is told.
        levels: of the members to watch.
    """

    __slots__ = ("_levels", "_profiler", "_seen")

    def __init__(self, profiler: PerformanceProfiler, levels: Sequence[int]) -> None:
        self._profiler = profiler
        self._levels = levels
        self._seen: dict[int, tuple[int, int, float]] = {}

    def look(self, load: Load) -> None:
        """Take in each member's latest operation, if it was not seen before.

        The forwards of a draft count as alike. A repeated operation that is equal in all figures tells nothing new.
        """
        for level in self._levels:
            num_forwards, new_tokens, duration_s = key = (
                load.num_forwards[level],
                load.new_tokens[level],
                load.duration_s[level],
            )
            if not num_forwards or self._seen.get(level) == key:
                continue
            self._seen[level] = key
            self._profiler.note(
                level,
                new_tokens=max(1, round(new_tokens / num_forwards)),
                seconds=duration_s / num_forwards,
                held_tokens=load.context_tokens,
            )
