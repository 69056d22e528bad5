"""Plays cells in processes of this machine (through joblib), of a Dask cluster or of Ray, and keeps each result.

The worker that played a cell writes its result, so that nothing is lost with the calling process. A process that dies
takes with it the cells that were being played: each of them is played once more, alone, and the one that kills its
process again is named.
"""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import reusable_executor
from joblib.externals.loky.process_executor import BrokenProcessPool

from ..base.errors import check_least, install_hint, raised_at, said
from ..base.terminal import Progress, held_interrupts, quiet
from ..decoding.steps import PolicyError
from .cells import CellFound, CellsPlayed, CellStore, CellWork, Failure, key_of

LOOK_S = 0.5  # between two checks whether the parent process still runs
ENDED = "its process ended by itself, as one that is killed for memory does"


class On(StrEnum):
    """Where cells are played."""

    processes = "processes"  # of this machine
    dask = "dask"  # the cluster that DASK_SCHEDULER_ADDRESS names, else processes of this machine
    ray = "ray"  # the cluster that RAY_ADDRESS names, else processes of this machine


def check_installed(on: On) -> None:
    """Raise ModuleNotFoundError, which says how to install it, where the package of a cluster is missing."""
    package = {On.dask: "distributed", On.ray: "ray"}.get(on)
    if package is not None and find_spec(package) is None:
        raise ModuleNotFoundError(f"--on {on} needs {package}: {install_hint(on.value)}")


@contextmanager
def kept_processes() -> Iterator[None]:
    """Within this block all calls of `play_cells` share their processes on this machine."""
    try:
        yield
    finally:
        executor: Any = reusable_executor._executor  # None where none was begun
        if executor is not None:
            getattr(executor, "terminate", executor.shutdown)()  # with joblib's files on the disk
            reusable_executor._executor = executor = None
            gc.collect()  # its semaphores, which outlive a process that ends at once


def play_cells(
    tasks: Sequence[Sequence[CellWork]],
    folder: Path,
    *,
    on: On = On.processes,
    jobs: int = 1,
    again: bool = False,
    unit: str = "cells",
) -> CellsPlayed:
    """Play the cells that the folder lacks; a process plays whole tasks, several short ones at a time.

    An interrupt ends it; what was played is kept. A second one raises KeyboardInterrupt. To be called in a block of
    `kept_processes`.

    Args:
        tasks: cells that read the same files are one task.
        folder: see `CellStore`.
        on: whose processes.
        jobs: processes of this machine, >= 1; one is this process itself. On a cluster its own number counts.
        again: whether cells that failed are played again.
        unit: what progress calls them.

    Raises:
        ArgumentError: `jobs` below 1.
        ModuleNotFoundError: Dask or Ray is not installed (`check_installed`).
    """
    check_least("`jobs`", jobs, 1)
    store = CellStore(folder)
    finished, failed = store.keys()
    known = finished if again else finished | failed
    keyed = [[(key_of(cell.asked), cell) for cell in task] for task in tasks]
    total = sum(map(len, keyed))
    told_before = [
        Failure(str(cell), found.failed)
        for task in keyed
        for key, cell in task
        if key in failed and not again and (found := store.read(key)) is not None
    ]
    rest = [left for task in keyed if (left := [pair for pair in task if pair[0] not in known])]
    kept = total - sum(map(len, rest))
    failures, lost, played = list[Failure](), list[Failure](), 0
    # The first cell of a task may search for a result that the others share.
    longest = max(map(len, rest), default=0)
    with (
        held_interrupts() as interrupts,
        Progress("sweep", total, unit=unit, done=kept, told_after=longest) as progress,
    ):
        for came in _come(rest, folder, on, jobs):
            progress.advance()
            progress.note(came.cell)
            played += not came.lost
            if came.why:
                (lost if came.lost else failures).append(Failure(came.cell, came.why))
            if interrupts.heard():
                break
    return CellsPlayed(total=total, kept=kept, played=played, failed=(*told_before, *failures), lost=tuple(lost))


class _Came(NamedTuple):
    """The result of a cell; `why` is empty where it has figures."""

    cell: str
    key: str
    why: str = ""
    lost: bool = False


Task = Sequence[tuple[str, CellWork]]  # with the key of each cell


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    folder: Path
    begun: Path | None  # folder in which each process notes the cell it plays; None: not needed
    parent: int | None  # process with which it ends; None: a cluster started it
    at: Path | None = None  # folder that paths of cells are relative to; None: the working directory

    def __call__(self, task: Task) -> list[_Came]:
        if self.at is not None:
            os.chdir(self.at)
        if self.parent is not None:
            end_with(self.parent)
        store, came = CellStore(self.folder), []
        with quiet():
            for key, cell in task:
                if self.begun is not None:
                    (self.begun / str(os.getpid())).write_text(key, encoding="utf-8")
                came.append(_play(store, key, cell))
        return came


def _play(store: CellStore, key: str, cell: CellWork) -> _Came:
    """Play one cell and keep its result; raises nothing, so that one cell does not lose the others."""
    name = str(cell)
    try:
        store.write(key, CellFound(asked=cell.asked, figures=cell.play()))
    except (MemoryError, OSError) as error:  # of this machine at this moment
        return _Came(name, key, _line(error), lost=True)
    except Exception as error:  # noqa: BLE001 - a policy may raise anything; it is reported with its cell
        why = _line(error)
        store.write(key, CellFound(asked=cell.asked, figures=None, failed=why))
        return _Came(name, key, why)
    return _Came(name, key)


def _line(error: Exception) -> str:
    """The error in one line, the same on every machine: without paths of installed packages."""
    if isinstance(error, ValueError | OSError | PolicyError):
        return " ".join(str(error).split())
    place = raised_at(error, installed=False)
    return " ".join(f"{type(error).__name__}: {said(error)}{f' ({place})' if place else ''}".split())


@cache
def end_with(parent: int) -> None:
    """End this process when `parent` is gone: a killed process cannot end its children."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _come(rest: Sequence[Task], folder: Path, on: On, jobs: int) -> Iterator[_Came]:
    if jobs == 1 and on is On.processes:
        store = CellStore(folder)
        with quiet():
            yield from (_play(store, key, cell) for task in rest for key, cell in task)
    elif on is On.processes:
        yield from _of_processes(rest, folder, jobs)
    else:
        yield from _of_cluster(rest, folder, on, jobs)


def _of_processes(rest: Sequence[Task], folder: Path, jobs: int) -> Iterator[_Came]:
    """Results of cells from processes of this machine; where one dies, others take over."""
    pending = {key: (key, cell) for task in rest for key, cell in task}
    while pending:
        tasks = [part for task in rest if (part := [pending[key] for key, _ in task if key in pending])]
        with TemporaryDirectory(prefix="paceline-sweep-") as begun, parallel_config("loky", n_jobs=jobs):
            worker = _Worker(folder=folder, begun=Path(begun), parent=os.getpid())
            try:
                for came in _together(worker, tasks):
                    pending.pop(came.key)
                    yield came
                return
            except BrokenProcessPool:  # all of its processes were ended with the one that died
                at = {path.read_text(encoding="utf-8") for path in Path(begun).iterdir()}
            finished, _ = CellStore(folder).keys()
            for key in finished & set(pending):
                yield _Came(str(pending.pop(key)[1]), key)
            # Where no process noted its cell, the first one counts as the cause.
            for key in (at & set(pending)) or list(pending)[:1]:
                pair = pending.pop(key)
                try:
                    yield from _together(worker, [[pair]])
                except BrokenProcessPool:
                    yield _Came(str(pair[1]), key, ENDED, lost=True)


def _together(worker: _Worker, tasks: Iterable[Task]) -> Iterator[_Came]:
    for came in called_together(partial(worker, task) for task in tasks):
        yield from came


Result = TypeVar("Result")


def called_together(calls: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """Results of calls, as they end, in processes of joblib's current backend; raises what one of them raises.

    Processes that begin here ignore Ctrl-C, which the calling process handles. To be called in a block of
    `kept_processes`.
    """
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Of arrays as large as recordings joblib would make files.
        ends = Parallel(return_as="generator_unordered", max_nbytes=None)(delayed(call)() for call in calls)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    try:
        yield from ends
    finally:
        ends.close()


class _Cluster(NamedTuple):
    """How to use the processes of a cluster."""

    submit: Callable[[_Worker, Task], Any]  # returns a future
    wait: Callable[[list[Any]], Iterable[Any]]  # some of the futures that have ended
    result: Callable[[Any], list[_Came]]
    # raised by `result` for a task of a process that ended, whether it had been played or not
    died: type[Exception]
    at_once: int  # tasks submitted at a time


def _of_cluster(rest: Iterable[Task], folder: Path, on: On, jobs: int) -> Iterator[_Came]:
    """Results of cells as they end; a few more tasks are submitted than there are processes.

    Which task killed a process is unknown: all its tasks are played once more, alone.
    """
    worker, left = _Worker(folder=folder.absolute(), begun=None, parent=None, at=Path.cwd()), iter(rest)
    with _dask(jobs) if on is On.dask else _ray(jobs) as cluster:
        pending = {cluster.submit(worker, task): task for task in islice(left, cluster.at_once)}
        suspected: list[Task] = []
        while pending:
            for future in cluster.wait(list(pending)):
                task = pending.pop(future)
                pending |= {cluster.submit(worker, more): more for more in islice(left, 1)}
                try:
                    yield from cluster.result(future)
                except cluster.died:
                    suspected.append(task)
        for pair in chain.from_iterable(suspected):
            try:
                yield from cluster.result(cluster.submit(worker, [pair]))
            except cluster.died:
                yield _Came(str(pair[1]), pair[0], ENDED, lost=True)


@contextmanager
def _dask(jobs: int) -> Iterator[_Cluster]:
    distributed = import_module("distributed")
    local = {} if os.environ.get("DASK_SCHEDULER_ADDRESS") else {"n_workers": jobs, "threads_per_worker": 1}
    with (
        import_module("dask").config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.Client(**local) as client,
    ):
        yield _Cluster(
            submit=lambda worker, task: client.submit(worker, task, pure=False),
            wait=lambda futures: distributed.wait(futures, return_when="FIRST_COMPLETED").done,
            result=lambda future: future.result(),
            died=distributed.KilledWorker,
            at_once=2 * max(sum(client.ncores().values()), 1),
        )


@contextmanager
def _ray(jobs: int) -> Iterator[_Cluster]:
    ray = import_module("ray")
    ray.init(**({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": jobs, "include_dashboard": False}))
    try:
        played = ray.remote(max_retries=0)(_played_by)
        yield _Cluster(
            submit=played.remote,
            wait=lambda futures: ray.wait(futures)[0],
            result=ray.get,
            died=ray.exceptions.WorkerCrashedError,
            at_once=2 * max(int(ray.cluster_resources().get("CPU", jobs)), 1),
        )
    finally:
        ray.shutdown()


def _played_by(worker: _Worker, task: Task) -> list[_Came]:
    return worker(task)
