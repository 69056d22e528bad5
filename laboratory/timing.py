"""Jobs run in turn, how long they take, and the memory of this process."""

import resource
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple, TypeVar

from ..progress import quiet

RUNS = 7
Name = TypeVar("Name")
Result = TypeVar("Result")


class Timing(NamedTuple):
    """Seconds by the wall clock, and of this process's own work (a busy machine adds none)."""

    wall_s: float
    cpu_s: float


def in_turns(
    jobs: Mapping[Name, Callable[[], Result]], *, runs: int = RUNS, warm_ups: int = 0
) -> dict[Name, list[Result]]:
    """What each job gave in its `runs` runs, all jobs in turn, so that a slow spell falls on all alike.

    Args:
        jobs: by name.
        runs: of each, >= 1.
        warm_ups: runs of each before these, whose results are dropped.
    """
    given: dict[Name, list[Result]] = {name: [] for name in jobs}
    with quiet():  # telling takes time, too
        for turn in range(warm_ups + runs):
            for name, job in jobs.items():
                result = job()
                if turn >= warm_ups:
                    given[name].append(result)
    return given


def interleaved(jobs: Mapping[str, Callable[[], object]], *, runs: int = RUNS) -> dict[str, Timing]:
    """Medians over `runs` runs after one that warms up, all jobs in turn."""
    taken = in_turns({name: _timed(job) for name, job in jobs.items()}, runs=runs, warm_ups=1)
    return {name: Timing(*(median(column) for column in zip(*each, strict=True))) for name, each in taken.items()}


def peak_bytes(of: int = resource.RUSAGE_SELF) -> int:
    """Largest resident memory so far of this process, or of its largest child with `RUSAGE_CHILDREN`."""
    return resource.getrusage(of).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _timed(job: Callable[[], object]) -> Callable[[], Timing]:
    def run() -> Timing:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        job()
        return Timing(time.perf_counter() - wall_s, time.process_time() - cpu_s)

    return run
