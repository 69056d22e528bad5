"""The replicas of a run: some are let run when somebody looks at them, for others SimPy has events.

A replica shares nothing with the others while it runs, so it may run later than they do: until a request comes to it,
a router looks, or the run stops. Only where a request that ends brings forth another one, or where what a replica does
is done elsewhere as well, has it to be done in its turn.
"""

from collections.abc import Callable, Sequence
from functools import partial

import simpy

from ...traces.workloads.arrival import Arrival
from .jumps.moment import Moment
from .ranked_event import RankedEvent, rank_of
from .running_replica import NEVER_PS, RunningReplica
from .served_replica import ServedReplica


class RunningReplicas:
    """Mutated as they run.

    Args:
        env: has the events.
        moment: of the run.
        replicas: in their order.
        after_each: called after all that a replica has done in its turn; may raise.
    """

    def __init__(
        self, env: simpy.Environment, moment: Moment, replicas: Sequence[ServedReplica], after_each: Callable[[], None]
    ) -> None:
        self._env = env
        self._moment = moment
        self._runs = tuple(map(RunningReplica, replicas))
        self._after_each = after_each
        self._in_turn = [not replica.may_lag for replica in replicas]
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
            run.begin(now_ps)
            if run.next_ps >= env.peek():
                break
        self._wait_for(index)
