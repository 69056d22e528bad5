"""What the benchmarks share: interleaved runs, their medians, peak memory."""

import resource
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

RUNS = 7


class Timing(NamedTuple):
    """Medians over runs, seconds: by the wall clock, and of this process's own work (a busy machine adds none)."""

    wall_s: float
    cpu_s: float


def interleaved(jobs: dict[str, Callable[[], object]], *, runs: int = RUNS) -> dict[str, Timing]:
    """Run all jobs in turn, `runs` times after one that warms up, so that a slow spell falls on all alike."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for turn in range(runs + 1):
        for name, job in jobs.items():
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            job()
            if turn:
                taken[name].append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
    return {name: Timing(*(median(column) for column in zip(*rows, strict=True))) for name, rows in taken.items()}


def peak_bytes() -> int:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
