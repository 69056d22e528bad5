"""The long parts of a distillation, one process each: shards are written side by side, then drafters trained."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from . import worker
from .job import Job

POLL_S = 0.1


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
            ended = _first_ended(running)
            if ended.returncode:
                raise JobFailedError(f"a process of the distillation ended with {ended.returncode}")
            running.remove(ended)
    finally:
        for process in running:
            process.kill()  # what it has not written whole it does not leave behind
            process.wait()


def _first_ended(running: Sequence[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Whichever ends first, so that its place is free for another job."""
    while True:
        for process in running:
            if process.poll() is not None:
                return process
        time.sleep(POLL_S)


def _started(job: Job) -> subprocess.Popen[bytes]:
    # In a session of its own: Ctrl-C is for whoever asked, who ends it.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", worker.__name__, json.dumps(asdict(job))], start_new_session=True
    )
