"""The long parts of a distillation, one process each: shards are written side by side, then drafters trained."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

from . import worker
from .job import Job


class JobFailedError(ValueError):
    """A process ended before its job was done."""


def run_jobs(jobs: Sequence[Job], *, processes: int) -> None:
    """Run jobs in so many processes at a time; one alone is done in this process.

    Raises:
        JobFailedError: a process failed; its own lines say why. The others are ended.
    """
    if processes == 1 or len(jobs) == 1:
        for job in jobs:
            worker.do(job)
        return
    waiting = list(jobs)
    running: list[subprocess.Popen[bytes]] = []
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                running.append(_started(waiting.pop(0)))
            if running[0].wait():
                raise JobFailedError(f"a process of the distillation ended with {running[0].returncode}")
            running.pop(0)
    finally:
        for process in running:
            process.kill()  # what it has not written whole it does not leave behind
            process.wait()


def _started(job: Job) -> subprocess.Popen[bytes]:
    # In a session of its own: Ctrl-C is for whoever asked, who ends it.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", worker.__name__, json.dumps(asdict(job))], start_new_session=True
    )
