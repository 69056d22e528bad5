"""Requests as they come: those of the workload, those that follow others of their session, and who gets each."""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Protocol, cast

import simpy

from ...arguments import ArgumentError
from ...traces.workloads.arrival import Arrival, Workload
from .engine.drawn_requests import DrawnRequests
from .jumps.moment import Moment
from .ranked_event import ARRIVALS, SNAPSHOT, RankedEvent
from .running_replicas import RunningReplicas
from .watcher import Watcher, stop_if_interrupted

_AT_ONCE = 64


class Dispatches(Protocol):
    """Says who gets a request; see `routers.Dispatcher`."""

    @property
    def looks(self) -> bool:
        """Whether replicas have to be as they are when a request arrives."""
        ...

    def next_snapshot_ps(self, now_ps: int) -> int | None:
        """When the first snapshot after now is due; None where signals are never stale."""
        ...

    def take_snapshot(self) -> None:
        """Take the signals of replicas as they are now."""
        ...

    def pick(self, arrival: Arrival) -> int:
        """The number of the replica for a request."""
        ...


class Arrivals:
    """Processes of a run.

    Args:
        env: has the events.
        moment: of the run.
        workload: whose requests come.
        dispatcher: says who gets them.
        replicas: get them.
        watcher: may stop the run.
        drawn: knows the tags of the recording.

    Attributes:
        is_broken: whether a row of the workload ended the run: it cannot be read, or cannot be served.
    """

    def __init__(
        self,
        env: simpy.Environment,
        moment: Moment,
        workload: Workload,
        dispatcher: Dispatches,
        replicas: RunningReplicas,
        watcher: Watcher,
        drawn: DrawnRequests,
    ) -> None:
        self.is_broken = False
        self._drawn = drawn
        self._env = env
        self._moment = moment
        self._dispatcher = dispatcher
        self._replicas = replicas
        self._watcher = watcher
        self._to_come = 1  # the workload itself counts while it is not read to its end
        env.process(self._arriving(workload))
        if dispatcher.next_snapshot_ps(0) is not None:
            env.process(self._snapshots())

    @property
    def is_open(self) -> bool:
        """Whether requests are still to come, as far as is known."""
        return self._to_come > 0

    def ended(self, arrival: Arrival, at_ps: int) -> None:
        """A request has ended, one way or another: those of its session come that waited for that."""
        self._watcher.ended()
        if arrival.turns is not None:
            self._release(arrival.turns.after(at_ps), at_ps)

    def reached(self, arrival: Arrival, depth: int, at_ps: int) -> None:
        """So much of an answer is written: those come that waited for it."""
        if arrival.turns is not None:
            self._release(arrival.turns.reached(depth, at_ps), at_ps)

    def _release(self, requests: Sequence[Arrival], at_ps: int) -> None:
        for one in requests:
            if one.arrives_ps < at_ps:
                raise ArgumentError(
                    f"request {one.request_id}: arrives_ps must be >= {at_ps}, when what it follows happened, "
                    f"got {one.arrives_ps}"
                )
            self._to_come += 1
            RankedEvent(self._env, one.arrives_ps, ARRIVALS, partial(self._follow, one))

    def _arriving(self, workload: Workload) -> Generator[simpy.Event, None, None]:
        """Nobody looks before the next event, so what comes earlier needs none of its own."""
        env, moment = self._env, self._moment
        for arrival in self._read(workload):
            at_ps = arrival.arrives_ps
            if at_ps >= env.peek():
                yield RankedEvent(env, at_ps, ARRIVALS)
            moment.now_ps = at_ps
            self._deliver(arrival)
        self._to_come -= 1
        self._replicas.wait_for_all()

    def _read(self, workload: Workload) -> Iterator[Arrival]:
        """The requests of a workload; of one that cannot be served `is_broken` tells."""
        before_ps = 0
        try:
            for arrival in _in_batches(workload):
                if arrival.arrives_ps < before_ps:
                    raise ArgumentError(
                        f"request {arrival.request_id}: arrives_ps must be >= {before_ps}, that of the one before, "
                        f"got {arrival.arrives_ps}"
                    )
                before_ps = arrival.arrives_ps
                self._drawn.check(arrival.request_id, arrival.tag)
                yield arrival
        except ValueError:
            self.is_broken = True
            raise

    def _follow(self, arrival: Arrival, _: simpy.Event) -> None:
        self._to_come -= 1
        self._moment.now_ps = arrival.arrives_ps
        self._deliver(arrival)

    def _deliver(self, arrival: Arrival) -> None:
        stop_if_interrupted(self._watcher)
        if self._dispatcher.looks:
            self._replicas.catch_up()
        self._replicas.arrive(self._dispatcher.pick(arrival), arrival)
        if arrival.turns is not None and 0 in arrival.turns.depths:
            self.reached(arrival, 0, arrival.arrives_ps)

    def _snapshots(self) -> Generator[simpy.Event, None, None]:
        """Let the router see the replicas anew from time to time, before the requests of that instant come."""
        while (self.is_open or self._replicas.is_open) and (at_ps := self._due_ps()) is not None:
            yield RankedEvent(self._env, at_ps, SNAPSHOT)
            self._moment.now_ps = at_ps
            self._replicas.catch_up()
            self._dispatcher.take_snapshot()

    def _due_ps(self) -> int | None:
        return self._dispatcher.next_snapshot_ps(cast(int, self._env.now))


def _in_batches(workload: Workload) -> Iterator[Arrival]:
    """The same, read some at a time: code that takes turns for each request drives the other's out of the caches."""
    arrivals = iter(workload)
    while True:
        batch: list[Arrival] = []
        try:
            batch.extend(islice(arrivals, _AT_ONCE))
        except ValueError:
            yield from batch  # what came before it, comes before it
            raise
        if not batch:
            return
        yield from batch
