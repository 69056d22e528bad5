"""The one clock of a run that is observed: whole picoseconds since its beginning, as all serving logs have them."""

import time

_PS_PER_NS = 1000


class Clock:
    """Tells the time since it was made; monotonic. Final."""

    def __init__(self) -> None:
        self._began_ns = time.perf_counter_ns()

    def now_ps(self) -> int:
        """Picoseconds since the beginning, >= 0."""
        return (time.perf_counter_ns() - self._began_ns) * _PS_PER_NS
