"""Handovers of one run: its clock, its events, and who takes new requests."""

from collections.abc import Callable, Sequence

import simpy

from ....traces.workloads.arrival import Arrival
from ..jumps.moment import Moment
from ..ranked_event import ARRIVALS, RankedEvent
from ..routers import Dispatcher
from ..served_replica import ServedReplica
from .decode_replica import DecodeReplica
from .handovers import Handovers
from .prefill_replica import PrefillReplica


class RunEvents:
    """See `Events`; what is done at an instant comes in its turn among the requests that come then.

    Args:
        env: of the run.
        moment: of the run.
        wake: lets a replica that found nothing to do look again, now.
    """

    def __init__(self, env: simpy.Environment, moment: Moment, wake: Callable[[int], None]) -> None:
        self._env = env
        self._moment = moment
        self.wake = wake

    def at(self, at_ps: int, do: Callable[[], None]) -> None:
        """See `Events`."""

        def happen(_: simpy.Event) -> None:
            self._moment.now_ps = at_ps
            do()

        RankedEvent(self._env, at_ps, ARRIVALS, happen)


class FirstDispatcher:
    """Routes new requests to replicas that take them, and lets the router of handovers see when this one's does.

    Args:
        dispatcher: of these replicas.
        indices: of them among all replicas of the run.
        decoders: dispatcher of those that are handed requests.
    """

    def __init__(self, dispatcher: Dispatcher, indices: Sequence[int], decoders: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._indices = tuple(indices)
        self._decoders = decoders

    @property
    def looks(self) -> bool:
        """See `Dispatcher`."""
        return self._dispatcher.looks

    def next_snapshot_ps(self, now_ps: int) -> int | None:
        """See `Dispatcher`."""
        return self._dispatcher.next_snapshot_ps(now_ps)

    def take_snapshot(self) -> None:
        """See `Dispatcher`; of all replicas."""
        self._dispatcher.take_snapshot()
        self._decoders.take_snapshot()

    def pick(self, arrival: Arrival) -> int:
        """See `Dispatcher`; the number is one among all replicas."""
        return self._indices[self._dispatcher.pick(arrival)]


def connected(
    handovers: Handovers, replicas: Sequence[ServedReplica], dispatch: Callable[[Sequence[ServedReplica]], Dispatcher]
) -> FirstDispatcher:
    """Let the replicas of a run that prefill hand over to those that decode; returns who routes new requests."""
    prefillers = {index: replica for index, replica in enumerate(replicas) if isinstance(replica, PrefillReplica)}
    decoders = {index: replica for index, replica in enumerate(replicas) if isinstance(replica, DecodeReplica)}
    dispatcher = dispatch(list(decoders.values()))
    handovers.connect(prefillers, decoders, dispatcher)
    first = [index for index in range(len(replicas)) if index not in decoders]
    return FirstDispatcher(dispatch([replicas[index] for index in first]), first, dispatcher)
