"""Processes that play: runs go there, and what came of them comes back, as lines of JSON."""

import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any

from ....interrupts import Interrupts
from ..cell import ArenaCell
from ..played import outcome_from_json, outcome_to_json
from .player import Came, Failed, Player, RunOf

LOOK_S = 0.2  # between two looks for an interrupt
WORKER = f"{__package__}.worker"
AHEAD = 2  # runs that a process has before it is done with one: it never waits, and a pipe is never full


class LostWorkerError(RuntimeError):
    """A process ended by itself in the midst of its runs, as one that was killed for memory does."""


def played_here(groups: Iterable[Sequence[RunOf]], interrupts: Interrupts) -> Iterator[tuple[RunOf, Came]]:
    """Play groups of runs one after another in this process, up to an interrupt."""
    player = Player()
    for group in groups:
        for run in group:
            if interrupts.heard():
                return
            yield run, player.outcome(run)


def played_by(groups: Iterable[Sequence[RunOf]], interrupts: Interrupts, *, jobs: int) -> Iterator[tuple[RunOf, Came]]:
    """Play groups of runs in processes, up to an interrupt: runs in the midst are then lost.

    Args:
        groups: of runs that one process is to play, as of one recording, those that take long first.
        interrupts: end it.
        jobs: processes, >= 1.

    Raises:
        LostWorkerError: a process ended by itself.
        TraceFormatError: a recording breaks its format.
    """
    waiting = deque(groups)
    workers = [_Worker() for _ in range(min(jobs, len(waiting)))]
    try:
        for worker in workers:
            worker.give(waiting.popleft())
        while any(worker.left for worker in workers) and not interrupts.heard():
            busy = {worker.line: worker for worker in workers if worker.left}
            for line in wait(list(busy), LOOK_S):
                worker = next(one for one in workers if one.line is line)
                yield worker.taken()
                if not worker.left and waiting:
                    worker.give(waiting.popleft())
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """One process and what it was given to play. Final."""

    def __init__(self) -> None:
        self._group: deque[RunOf] = deque()
        self._sent: deque[RunOf] = deque()
        self.line, theirs = Pipe()
        fd = theirs.fileno()
        # In a session of its own: Ctrl-C is for whoever asked, who ends it.
        command = [sys.executable, "-P", "-m", WORKER, str(fd)]
        self._process = subprocess.Popen(command, pass_fds=[fd], start_new_session=True)
        theirs.close()

    @property
    def left(self) -> bool:
        """Whether anything is still to come."""
        return bool(self._sent)

    def give(self, group: Sequence[RunOf]) -> None:
        """Have a group played."""
        self._group.extend(group)
        for _ in range(AHEAD):
            self._send()

    def taken(self) -> tuple[RunOf, Came]:
        """What came of its next run; waits for it."""
        run = self._sent[0]
        try:
            content = json.loads(self.line.recv_bytes())
        except (EOFError, OSError):
            self._process.wait()
            code = self._process.returncode
            raise LostWorkerError(
                f"the process that played {run.policy} in {run.cell} ended with code {code}"
            ) from None
        self._sent.popleft()
        self._send()
        return run, came_from_json(content)

    def _send(self) -> None:
        if self._group:
            run = self._group.popleft()
            self._sent.append(run)
            self.line.send_bytes(json.dumps(run_to_json(run)).encode())

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()
        self.line.close()


def run_to_json(run: RunOf) -> dict[str, Any]:
    """Plain values for `json.dumps`."""
    return asdict(run) | {"trace": str(run.trace), "cell": str(run.cell)}


def run_from_json(content: Mapping[str, Any]) -> RunOf:
    """What `run_to_json` made values of."""
    given = tuple((name, value) for name, value in content["given"])
    cell, trace = ArenaCell.parse(content["cell"]), Path(content["trace"])
    return RunOf(**dict(content) | {"trace": trace, "cell": cell, "given": given})


def came_to_json(came: Came) -> dict[str, Any]:
    """Plain values for `json.dumps`."""
    return asdict(came) | {"cell": str(came.cell)} if isinstance(came, Failed) else outcome_to_json(came)


def came_from_json(content: Mapping[str, Any]) -> Came:
    """What `came_to_json` made values of."""
    if "error" in content:
        return Failed(**dict(content) | {"cell": ArenaCell.parse(content["cell"])})
    return outcome_from_json(content)
