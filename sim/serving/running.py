"""Lets replicas and requests happen in their order: processes and events of SimPy around replicas that know no clock.

Of one instant, snapshots for routers come first, then arrivals in the order of the workload, then replicas by index.

A replica shares nothing with the others while it runs, so it may run later than they do: until a request comes to it,
a router looks, or the run stops. Only where a request that ends brings forth another one, or where what a replica does
is done elsewhere as well, has it to be done in its turn.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Protocol, cast

import simpy
from simpy.events import EventPriority

from ...base.errors import ArgumentError
from ...traces.workloads.arrival import MOST_PS, Arrival, Workload
from .engine import Replica
from .requests import DrawnRequests
from .routers import Dispatcher

SNAPSHOT, ARRIVALS = EventPriority(-1), EventPriority(0)


def rank_of(replica: int) -> EventPriority:
    """Rank of what the replica at an index does."""
    return EventPriority(ARRIVALS + 1 + replica)


class RankedEvent(simpy.Event):
    """An event that happens; of those of one instant that of the smallest rank comes first."""

    _ok = True
    _value = None

    def __init__(
        self, env: simpy.Environment, at_ps: int, rank: EventPriority, do: Callable[[simpy.Event], None] | None = None
    ) -> None:
        """Let it happen.

        Args:
            env: of the run.
            at_ps: when, not before the events that have happened.
            rank: at that instant.
            do: is called then, with the event; None: a process waits for it.
        """
        super().__init__(env)
        if do is not None:
            assert self.callbacks is not None
            self.callbacks.append(do)
        env.schedule(self, rank, at_ps - env.now)

    def cancel(self) -> None:
        """It happens to nobody."""
        self.callbacks = []


NEVER_PS = 2 * MOST_PS  # later than any run


class RunningReplica:
    """Lets a replica run, from one end of what it planned to the next, and no further than asked.

    Attributes:
        next_ps: when it does something next: what runs ends, or a request wakes it up. NEVER_PS while it has nothing to
            do, and once it has failed.
    """

    __slots__ = ("_busy", "next_ps", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.next_ps = NEVER_PS
        self._busy = False

    def arrive(self, arrival: Arrival, at_ps: int) -> None:
        """A request comes, after all that the replica has done before."""
        self.replica.arrive(arrival, at_ps)
        # Of an idle one others may come at this instant before it looks; what runs may have been cut.
        self.next_ps = self.replica.end_ps if self._busy else at_ps

    def wake(self, at_ps: int) -> None:
        """If it has nothing to do it looks again."""
        if not self._busy:
            self.next_ps = at_ps

    def finish(self) -> int:
        """What runs has ended; returns when."""
        now_ps, self.next_ps = self.next_ps, NEVER_PS
        if self._busy:
            self._busy = False
            self.replica.commit()
        return now_ps

    def begin(self, now_ps: int, until_ps: float) -> None:
        """Something else runs, if there is anything; what ends before `until_ps` may be done at once."""
        end_ps = self.replica.plan(now_ps, until_ps)
        if end_ps is not None:
            self._busy = True
            self.next_ps = end_ps

    def catch_up(self, until_ps: int) -> None:
        """Do all that it does before an instant."""
        while self.next_ps < until_ps:
            self.begin(self.finish(), until_ps)


class Watcher(Protocol):
    """Looks on; has no say in what happens but whether it goes on."""

    def ended(self) -> None:
        """One request more has finished, or was rejected."""
        ...

    def interrupted(self) -> bool:
        """Whether the run is to stop; asked where all that was recorded goes together.

        That is before a request comes, and after every operation of a replica that runs in its turn.
        """
        ...


class Nobody:
    """Looks away."""

    def ended(self) -> None:
        """See `Watcher`."""

    def interrupted(self) -> bool:
        """See `Watcher`: never."""
        return False


class InterruptedRunError(Exception):
    """The watcher wants the run to stop."""


def stop_if_interrupted(watcher: Watcher) -> None:
    """Raise InterruptedRunError if the run is to stop."""
    if watcher.interrupted():
        raise InterruptedRunError


class Moment:
    """Mutated by whoever drives the run.

    Attributes:
        now_ps: the instant of what is being done; never goes back.
    """

    __slots__ = ("_turn", "_turn_ps", "now_ps")

    def __init__(self) -> None:
        self.now_ps = 0
        self._turn_ps = -1
        self._turn = -1

    def take_turn(self, index: int, at_ps: int) -> None:
        """What a replica does at an instant is being done."""
        self.now_ps = at_ps
        if (at_ps, index) > (self._turn_ps, self._turn):
            self._turn_ps, self._turn = at_ps, index

    def passed(self, index: int) -> bool:
        """Whether what a replica does at this instant has been done; a request that follows another one may ask so."""
        return self._turn_ps == self.now_ps and index <= self._turn


class RunningReplicas:
    """The replicas of a run and their events. `after_each` is called after what one did in its turn, and may raise."""

    def __init__(
        self, env: simpy.Environment, moment: Moment, replicas: Sequence[Replica], after_each: Callable[[], None]
    ) -> None:
        self._env = env
        self._moment = moment
        self._runs = tuple(map(RunningReplica, replicas))
        self._after_each = after_each
        self._in_turn = [not replica.may_lag for replica in replicas]
        # Those that do in their turn what nobody else takes part in.
        self._run_ahead = [replica.may_lag for replica in replicas]
        self._timers: dict[int, tuple[int, RankedEvent]] = {}  # with when they are due
        self._turns = [(rank_of(index), partial(self._take_turn, index)) for index in range(len(replicas))]

    @property
    def is_open(self) -> bool:
        """Whether a request that has come has not ended, as far as the replicas have run."""
        return any(run.replica.num_running or run.replica.num_waiting for run in self._runs)

    def arrive(self, index: int, arrival: Arrival) -> None:
        """A request comes to a replica now."""
        moment, run = self._moment, self._runs[index]
        if not self._in_turn[index]:
            run.catch_up(moment.now_ps + moment.passed(index))
        run.arrive(arrival, moment.now_ps)
        # Once a replica's turn of this instant is over, it looks again only after all others that come at it.
        if arrival.turns is not None or moment.passed(index):
            self._in_turn[index] = True
        if self._in_turn[index]:
            self._wait_for(index)

    def wake(self, index: int) -> None:
        """A replica that runs in its turn looks again, now, if it has nothing to do."""
        self._runs[index].wake(self._moment.now_ps)
        self._wait_for(index)

    def catch_up(self) -> None:
        """Let all of them run until now."""
        moment = self._moment
        for index, run in enumerate(self._runs):
            if not self._in_turn[index]:
                run.catch_up(moment.now_ps + moment.passed(index))

    def wait_for_all(self) -> None:
        """From now on all of them run in turn, since nobody will look at them."""
        self.catch_up()
        for index in range(len(self._runs)):
            self._in_turn[index] = True
            self._wait_for(index)

    def _wait_for(self, index: int) -> None:
        at_ps, (due_ps, timer) = self._runs[index].next_ps, self._timers.get(index, (NEVER_PS, None))
        if at_ps == due_ps:  # a request that comes mostly leaves it as it was
            return
        if timer is not None:
            timer.cancel()
            del self._timers[index]
        if at_ps < NEVER_PS:
            timer = RankedEvent(self._env, at_ps, *self._turns[index])
            self._timers[index] = at_ps, timer

    def _take_turn(self, index: int, _: simpy.Event) -> None:
        """A replica does what is due now, and all that comes before anything else happens."""
        run, moment, env = self._runs[index], self._moment, self._env
        del self._timers[index]
        while True:
            moment.take_turn(index, run.next_ps)
            now_ps = run.finish()
            self._after_each()
            run.begin(now_ps, env.peek() if self._run_ahead[index] else 0)
            if run.next_ps >= env.peek():
                break
        self._wait_for(index)


_AT_ONCE = 64


class Arrivals:
    """Processes of a run.

    Attributes:
        is_broken: whether a row of the workload ended the run: it cannot be read, or cannot be served.
    """

    def __init__(
        self,
        env: simpy.Environment,
        moment: Moment,
        workload: Workload,
        dispatcher: Dispatcher,
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
            try:
                following = arrival.turns.after(at_ps)
            except ValueError as error:  # of a closed loop, whose next row is read now
                self._to_come += 1
                RankedEvent(self._env, at_ps, ARRIVALS, partial(self._break, error, at_ps))
                return
            self._release(following, at_ps)

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

    def _break(self, error: ValueError, at_ps: int, _: simpy.Event) -> None:
        """A row that cannot be read would have come now."""
        self.is_broken = True
        self._moment.now_ps = at_ps
        raise error

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
