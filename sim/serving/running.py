"""Runs replicas and requests in order of time: processes and events of SimPy around replicas without a clock.

Of one instant, snapshots for routers come first, then arrivals in the order of the workload, then what follows those
that were rejected, then replicas by index, then what follows requests that end or write at this instant.

A replica shares nothing with the others while it runs, so it may run later than they do: until a request arrives there,
a router reads signals, or the run stops. It must run in its turn only where the end of a request causes another one, or
where its operations are also carried out elsewhere.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import cast

import simpy
from simpy.events import EventPriority

from ...base.errors import ArgumentError
from ...traces.workloads.arrival import MOST_PS, PS_PER_S, Arrival, Workload
from .engine import Replica
from .requests import DrawnRequests
from .routers import Dispatcher

SNAPSHOT, ARRIVALS = EventPriority(-1), EventPriority(0)
AFTER_REJECTION = cast(EventPriority, 0.5)  # between these and replica 0: ranks of SimPy's own events are 0 and 1


def rank_of(replica: int) -> EventPriority:
    """Rank of the actions of the replica at an index."""
    return EventPriority(ARRIVALS + 1 + replica)


class RankedEvent(simpy.Event):
    """An event with a rank; of those at one instant that of the smallest rank comes first."""

    _ok = True
    _value = None

    def __init__(
        self, env: simpy.Environment, at_ps: int, rank: EventPriority, do: Callable[[simpy.Event], None] | None = None
    ) -> None:
        """Schedule it at an instant, not before past events; then `do` is called with it, None: a process waits."""
        super().__init__(env)
        if do is not None:
            assert self.callbacks is not None
            self.callbacks.append(do)
        env.schedule(self, rank, at_ps - env.now)

    def cancel(self) -> None:
        """Cancel the event's callbacks."""
        self.callbacks = []


NEVER_PS = 2 * MOST_PS  # later than any run
TURN_PS = 60 * PS_PER_S  # of a turn at most, since a run can be stopped only between turns


class RunningReplica:
    """Runs a replica from the end of one operation to that of the next, at most to a given instant.

    Attributes:
        next_ps: instant of its next action: an operation ends, or a request wakes it up. NEVER_PS while it is idle, and
            after a failure.
    """

    __slots__ = ("_busy", "next_ps", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.next_ps = NEVER_PS
        self._busy = False

    def arrive(self, arrival: Arrival, at_ps: int) -> None:
        """A request arrives, after all earlier actions of the replica."""
        self.replica.arrive(arrival, at_ps)
        # To an idle replica others may come at this instant before it plans; a running operation may have been cut.
        self.next_ps = self.replica.end_ps if self._busy else at_ps

    def wake(self, at_ps: int) -> None:
        """Let it plan again if it is idle."""
        if not self._busy:
            self.next_ps = at_ps

    def finish(self) -> int:
        """End the running operation; returns its instant."""
        now_ps, self.next_ps = self.next_ps, NEVER_PS
        if self._busy:
            self._busy = False
            self.replica.commit()
        return now_ps

    def begin(self, now_ps: int, until_ps: int) -> None:
        """Begin the next operation, if any; what ends before `until_ps` may be done at once."""
        end_ps = self.replica.plan(now_ps, until_ps)
        if end_ps is not None:
            self._busy = True
            self.next_ps = end_ps

    def catch_up(self, until_ps: int) -> None:
        """Run all its actions before an instant."""
        while self.next_ps < until_ps:
            self.begin(self.finish(), until_ps)


class Watcher:
    """Observes a run, and may stop it; this one does neither."""

    def ended(self) -> None:
        """Called when a request has finished, or was rejected."""

    def interrupted(self) -> bool:
        """Whether the run is to stop; called where the records are consistent.

        That is before a request arrives, and after every turn of a replica that runs in its turn.
        """
        return False


class InterruptedRunError(Exception):
    """The watcher stops the run."""


def stop_if_interrupted(watcher: Watcher) -> None:
    """Raise InterruptedRunError if the run is to stop."""
    if watcher.interrupted():
        raise InterruptedRunError


class Moment:
    """The present instant of a run. Mutated by the run's events.

    Attributes:
        now_ps: the instant of the present action; never decreases.
    """

    __slots__ = ("_turn", "_turn_ps", "now_ps")

    def __init__(self) -> None:
        self.now_ps = 0
        self._turn_ps = -1
        self._turn = -1

    def take_turn(self, index: int, at_ps: int) -> None:
        """Begin the actions of a replica at an instant."""
        self.now_ps = at_ps
        if (at_ps, index) > (self._turn_ps, self._turn):
            self._turn_ps, self._turn = at_ps, index

    def passed(self, index: int) -> bool:
        """Whether a replica's actions at this instant are done, for requests that follow others."""
        return self._turn_ps == self.now_ps and index <= self._turn


class RunningReplicas:
    """The replicas of a run and their events. `after_each` is called after each turn of a replica, and may raise.

    Attributes:
        last_rank: of actions after the turns of all.
    """

    def __init__(
        self, env: simpy.Environment, moment: Moment, replicas: Sequence[Replica], after_each: Callable[[], None]
    ) -> None:
        self._env = env
        self._moment = moment
        self._runs = tuple(map(RunningReplica, replicas))
        self._after_each = after_each
        self._in_turn = [not replica.may_lag for replica in replicas]
        # Replicas that run in their turn.
        self._run_ahead = [replica.may_lag for replica in replicas]
        self._timers: dict[int, tuple[int, RankedEvent]] = {}  # with their instants
        self._turns = [(rank_of(index), partial(self._take_turn, index)) for index in range(len(replicas))]
        self.last_rank = rank_of(len(replicas))

    @property
    def is_open(self) -> bool:
        """Whether an arrived request is unfinished, as far as the replicas have run."""
        return any(run.replica.num_running or run.replica.num_waiting for run in self._runs)

    def arrive(self, index: int, arrival: Arrival) -> None:
        """Pass a request to a replica now."""
        moment, run = self._moment, self._runs[index]
        if not self._in_turn[index]:
            run.catch_up(moment.now_ps + moment.passed(index))
        run.arrive(arrival, moment.now_ps)
        # If a replica's turn of this instant is over, it plans again only after all further arrivals of the instant.
        if arrival.turns is not None or moment.passed(index):
            self._in_turn[index] = True
        if self._in_turn[index]:
            self._wait_for(index)

    def wake(self, index: int) -> None:
        """Let a replica that runs in its turn plan again, now, if it is idle."""
        self._runs[index].wake(self._moment.now_ps)
        self._wait_for(index)

    def catch_up(self) -> None:
        """Run all of them until now."""
        moment = self._moment
        for index, run in enumerate(self._runs):
            if not self._in_turn[index]:
                run.catch_up(moment.now_ps + moment.passed(index))

    def wait_for_all(self) -> None:
        """Run all of them in turn from now on, as no router will read them."""
        self.catch_up()
        for index in range(len(self._runs)):
            self._in_turn[index] = True
            self._wait_for(index)

    def end_turns(self) -> None:
        """The turns of all at the present instant are over."""
        self._moment.take_turn(len(self._runs), self._moment.now_ps)

    def _wait_for(self, index: int) -> None:
        at_ps, (due_ps, timer) = self._runs[index].next_ps, self._timers.get(index, (NEVER_PS, None))
        if at_ps == due_ps:  # usually unchanged by an arrival
            return
        if timer is not None:
            timer.cancel()
            del self._timers[index]
        if at_ps < NEVER_PS:
            timer = RankedEvent(self._env, at_ps, *self._turns[index])
            self._timers[index] = at_ps, timer

    def _take_turn(self, index: int, _: simpy.Event) -> None:
        """Run a replica's actions due now, and all before the next event."""
        run, moment, env = self._runs[index], self._moment, self._env
        del self._timers[index]
        while True:
            moment.take_turn(index, run.next_ps)
            now_ps = run.finish()
            self._after_each()
            run.begin(now_ps, cast(int, min(env.peek(), now_ps + TURN_PS)) if self._run_ahead[index] else 0)
            if run.next_ps >= env.peek():
                break
        self._wait_for(index)


_AT_ONCE = 64


class Sessions:
    """Sessions of several requests, each from the arrival of its first until all have ended.

    Attributes:
        took: `[S]` (arrival of the first request, end of the last one), ps; of sessions that have ended.
    """

    def __init__(self) -> None:
        self.took: list[tuple[int, int]] = []
        # Of a request to come: its session as [arrival of the first, requests that have not ended, requests, latest
        # end]. A replica that runs later than others tells an earlier end after a later one.
        self._of: dict[str, list[int]] = {}

    def follow(self, arrival: Arrival, following: Sequence[Arrival]) -> None:
        """Requests of the session of `arrival`, which has not ended, are to come."""
        session = self._of.setdefault(arrival.request_id, [arrival.arrives_ps, 1, 1, 0])
        for one in following:
            if not one.begins:
                self._of[one.request_id] = session
                session[1:3] = session[1] + 1, session[2] + 1

    def end(self, arrival: Arrival, at_ps: int) -> None:
        """A request has ended; what follows it is known."""
        session = self._of.pop(arrival.request_id, None)
        if session is None:
            return
        session[1], session[3] = session[1] - 1, max(session[3], at_ps)
        if not session[1] and session[2] > 1:
            self.took.append((session[0], session[3]))


class Arrivals:
    """Processes of a run.

    Attributes:
        sessions: that have ended.
        is_broken: whether a row of the workload, unreadable or impossible to serve, ended the run.
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
        self.sessions = Sessions()
        self._drawn = drawn
        self._env = env
        self._moment = moment
        self._dispatcher = dispatcher
        self._replicas = replicas
        self._watcher = watcher
        self._to_come = 1  # the workload itself counts until it is read to its end
        self._at_once: list[Arrival] = []  # what follows others at the present instant
        env.process(self._arriving(workload))
        if dispatcher.next_snapshot_ps(0) is not None:
            env.process(self._snapshots())

    @property
    def is_open(self) -> bool:
        """Whether further requests are known to arrive."""
        return self._to_come > 0

    def ended(self, arrival: Arrival, at_ps: int) -> None:
        """Release the requests of a session that waited for the end of a finished or rejected one."""
        self._watcher.ended()
        if arrival.turns is not None:
            try:
                following = arrival.turns.after(at_ps)
            except ValueError as error:  # of a closed loop, which reads its next row now
                self._to_come += 1
                RankedEvent(self._env, at_ps, self._replicas.last_rank, partial(self._break, error, at_ps))
                return
            self.sessions.follow(arrival, following)
            self._release(arrival, following, at_ps, AFTER_REJECTION)
        self.sessions.end(arrival, at_ps)

    def reached(self, arrival: Arrival, depth: int, at_ps: int) -> None:
        """Release the requests that waited for `depth` tokens of an answer."""
        if arrival.turns is not None:
            following = arrival.turns.reached(depth, at_ps)
            self.sessions.follow(arrival, following)
            self._release(arrival, following, at_ps, ARRIVALS)

    def _release(self, arrival: Arrival, following: Sequence[Arrival], at_ps: int, beside: EventPriority) -> None:
        """Let requests follow another; `beside` is the rank of those that follow it as it arrives."""
        arrives = arrival.arrives_ps == at_ps
        for one in following:
            if one.arrives_ps < at_ps:
                raise ArgumentError(
                    f"request {one.request_id}: arrives_ps must be >= {at_ps}, when what it follows happened, "
                    f"got {one.arrives_ps}"
                )
            self._to_come += 1
            if arrives or one.arrives_ps > at_ps:
                RankedEvent(self._env, one.arrives_ps, beside if arrives else ARRIVALS, partial(self._follow, one))
                continue
            if not self._at_once:
                RankedEvent(self._env, at_ps, self._replicas.last_rank, partial(self._follow_at_once, at_ps))
            self._at_once.append(one)

    def _arriving(self, workload: Workload) -> Generator[simpy.Event, None, None]:
        """Deliver arrivals; those before the next event need no events of their own."""
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
        """The requests of a workload; sets `is_broken` at one that cannot be served."""
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
        """End the run at the instant of an unreadable row."""
        self.is_broken = True
        self._moment.now_ps = at_ps
        raise error

    def _follow(self, arrival: Arrival, _: simpy.Event) -> None:
        self._to_come -= 1
        self._moment.now_ps = arrival.arrives_ps
        self._deliver(arrival)

    def _follow_at_once(self, at_ps: int, _: simpy.Event) -> None:
        """All of an instant come together: an idle replica plans once they are there."""
        self._moment.now_ps = at_ps
        self._replicas.end_turns()
        following, self._at_once = self._at_once, []
        for arrival in following:
            self._to_come -= 1
            self._deliver(arrival)

    def _deliver(self, arrival: Arrival) -> None:
        stop_if_interrupted(self._watcher)
        if self._dispatcher.looks:
            self._replicas.catch_up()
        self._replicas.arrive(self._dispatcher.pick(arrival), arrival)
        if arrival.turns is not None and 0 in arrival.turns.depths:
            self.reached(arrival, 0, arrival.arrives_ps)

    def _snapshots(self) -> Generator[simpy.Event, None, None]:
        """Take the router's snapshots, before the requests of the same instant."""
        while self.is_open or self._replicas.is_open:
            at_ps = self._dispatcher.next_snapshot_ps(cast(int, self._env.now))
            if at_ps is None:
                return
            yield RankedEvent(self._env, at_ps, SNAPSHOT)
            self._moment.now_ps = at_ps
            self._replicas.catch_up()
            self._dispatcher.take_snapshot()


def _in_batches(workload: Workload) -> Iterator[Arrival]:
    """The same, read in batches: code that alternates for each request evicts the other's from the caches."""
    arrivals = iter(workload)
    while True:
        batch: list[Arrival] = []
        try:
            batch.extend(islice(arrivals, _AT_ONCE))
        except ValueError:
            yield from batch  # requests before the error come first
            raise
        if not batch:
            return
        yield from batch
