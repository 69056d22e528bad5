"""One served run: requests arrive, a router gives each to a replica, SimPy moves the clock.

Of what happens at one instant, arrivals come first, in the order of the workload, then replicas by index.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import simpy

from ...arguments import ArgumentError
from ...policies.about import about_of
from ...runs.serving.recorder import ServingRecorder
from ...traces.workloads.arrival import Arrival, Workload
from ...traces.workloads.exact_seconds import MOST_PS
from ..device import paused_collector
from ..replay_tables import ReplayTables, check_observed
from .engine.answer_lengths import AnswerLengths
from .engine.drawn_requests import DrawnRequests
from .engine.replica_spec import ReplicaSpec, ServedFrom
from .engine.served_session import Deadline
from .jumps.moment import Moment
from .make_replica import make_replica
from .ranked_event import RankedEvent
from .routers import Dispatcher
from .served_replica import ServedReplica
from .watcher import Nobody, Watcher

# Stands before the replicas of a run.
Dispatch = Callable[[Sequence[ServedReplica]], Dispatcher]

# Why a run was stopped; the last, since a log holds no later time.
INTERRUPTED, HORIZON, LATEST = "interrupted", "horizon", "latest time of a log"
SNAPSHOT, ARRIVALS = -1, 0  # ranks; those of replicas come after them, in their order


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a run says besides its log.

    Attributes:
        num_emitted: tokens that came out.
        num_cycled: of these, how many came after the first pass of a recorded answer.
        num_modelled: decisions that were modelled rather than replayed.
        stopped: why the run was stopped before all requests had ended; "" if it was not.
        paths: how the steps of each replica were worked out, in words.
    """

    num_emitted: int
    num_cycled: int
    num_modelled: int
    stopped: str
    paths: tuple[str, ...]


def serve(
    workload: Workload,
    tables: ReplayTables,
    replicas: Sequence[ReplicaSpec],
    *,
    dispatch: Dispatch,
    recorder: ServingRecorder,
    horizon_ps: int | None = None,
    seed: int = 0,
    strict: bool = False,
    deadlines: Mapping[str, Deadline | None] | None = None,
    outputs: dict[str, list[int]] | None = None,
    watcher: Watcher | None = None,
    stepwise: bool = False,
) -> Served:
    """Serve a workload to its end, or to the horizon.

    A replica whose policy runs the target alone works out many steps at once, and one whose policy's rounds are fixed
    plays each once, if nothing is against it (`make_replica`): figures are the same, to the picosecond. `Served` and
    the recorder are told which did.

    Args:
        workload: requests; acceptance is drawn for them from `tables`.
        tables: of a recording.
        replicas: at least one, each with a policy object of its own.
        dispatch: makes what routes requests to these replicas.
        recorder: told all that happens, also if the run is interrupted or fails; its members are those of the pool,
            its replicas these.
        horizon_ps: the run is stopped then, in [1, MOST_PS]; None: it ends with the last request, or at `MOST_PS`.
        seed: of the acceptance that is drawn, and of what is modelled.
        strict: refuse what is not recorded instead of modelling it.
        deadlines: when classes of service levels want tokens, for policies that look at it; "" is for all that are not
            named.
        outputs: takes the tokens of every finished request by its id; None drops them.
        watcher: looks on, and may stop the run.
        stepwise: run every step by itself, whatever the policy.

    Raises:
        ArgumentError: no replica, a policy that two replicas share or that sees ahead, a horizon out of range, a tag
            that the recording has not, an arrival before the one before it.
        PolicyError: a policy broke the contract.
        RouterError: a router did.
        UnrecordedContextError: `strict`, and a decision is not recorded.
        CostRangeError: an operation outside what a cost model knows.
        KeyboardInterrupt: after the recorder was told, which may be of half an operation.
    """
    _check(replicas, tables, horizon_ps)
    answers = tables.answers(seed=seed, strict=strict)
    shared = partial(
        ServedFrom,
        pool=tables.pool,
        answers=answers,
        lengths=AnswerLengths(tables.pool, answers),
        drawn=DrawnRequests(tables.trace.requests, seed=seed),
        unit_tokens=workload.about.unit_tokens,
        deadlines=deadlines or {},
        recorder=recorder,
        outputs=outputs,
    )
    run = _Run(workload, replicas, dispatch, recorder, shared, watcher or Nobody(), stepwise=stepwise)
    return run.go(horizon_ps)


class _InterruptedError(Exception):
    """The watcher wants the run to stop."""


def _check(replicas: Sequence[ReplicaSpec], tables: ReplayTables, horizon_ps: int | None) -> None:
    if not replicas:
        raise ArgumentError("`replicas` must hold at least one")
    if len({id(spec.policy) for spec in replicas}) < len(replicas):
        raise ArgumentError("`replicas` must not share a policy object: what it learns is of one replica")
    if horizon_ps is not None and not 0 < horizon_ps <= MOST_PS:
        raise ArgumentError(f"`horizon_ps` must be in [1, {MOST_PS}], got {horizon_ps}")
    for spec in replicas:
        check_observed(spec.policy, spec.policy_name, tables)
        about = about_of(spec.policy)
        if about is not None and about.oracle:
            raise ArgumentError(f"policy {spec.policy_name} sees ahead, which only replay without load can grant")


class _Run:
    """The processes of a run."""

    def __init__(
        self,
        workload: Workload,
        replicas: Sequence[ReplicaSpec],
        dispatch: Dispatch,
        recorder: ServingRecorder,
        shared: Callable[..., ServedFrom],
        watcher: Watcher,
        *,
        stepwise: bool,
    ) -> None:
        self.env = simpy.Environment(initial_time=0)
        self._recorder = recorder
        self._watcher = watcher
        self._moment = Moment()
        whole = shared(on_ended=self._ended)
        made = [
            make_replica(index, spec, whole, self._moment, stepwise=stepwise) for index, spec in enumerate(replicas)
        ]
        self.replicas = [replica for replica, _ in made]
        self._paths = tuple(path for _, path in made)
        for index, path in enumerate(self._paths):
            recorder.path(index, path)
        self._dispatcher = dispatch(self.replicas)
        self._idle: dict[int, RankedEvent] = {}
        self._timers: dict[int, RankedEvent] = {}
        self._latest_ps = 0
        self._to_come = 1  # the workload itself counts while it is not read to its end
        self.env.process(self._arrivals(workload))
        if self._dispatcher.next_snapshot_ps(0) is not None:
            self.env.process(self._snapshots())
        for index in range(len(replicas)):
            self.env.process(self._serving(index))

    def go(self, horizon_ps: int | None) -> Served:
        """To the end, the horizon, or an interrupt; whatever ends it, the recorder is told all."""
        stopped = ""
        try:
            with paused_collector():
                self.env.run(until=MOST_PS if horizon_ps is None else horizon_ps)
            if self._is_open:
                stopped, self._latest_ps = LATEST if horizon_ps is None else HORIZON, self._now_ps
        except _InterruptedError:
            stopped = INTERRUPTED
        except BaseException as error:
            stopped = INTERRUPTED if isinstance(error, KeyboardInterrupt) else f"failed: {type(error).__name__}"
            raise
        finally:
            self._moment.now_ps = self._now_ps
            for replica in self.replicas:
                replica.close_books()
            if stopped:
                self._latest_ps = max(self._latest_ps, self._now_ps)
                self._recorder.stopped(self._latest_ps, stopped)
        return Served(
            num_emitted=sum(replica.num_emitted for replica in self.replicas),
            num_cycled=sum(replica.num_cycled for replica in self.replicas),
            num_modelled=sum(replica.num_modelled for replica in self.replicas),
            stopped=stopped,
            paths=self._paths,
        )

    @property
    def _is_open(self) -> bool:
        """Whether a request has not ended, or is still to come."""
        return self._to_come > 0 or any(replica.num_running or replica.num_waiting for replica in self.replicas)

    @property
    def _now_ps(self) -> int:
        return cast(int, self.env.now)  # whole, since all delays are

    def _arrivals(self, workload: Workload) -> Generator[simpy.Event, None, None]:
        for arrival in workload:
            wait_ps = arrival.arrives_ps - self._now_ps
            if wait_ps < 0:
                raise ArgumentError(
                    f"request {arrival.request_id}: arrives_ps must be >= {self._now_ps}, that of the one before, "
                    f"got {arrival.arrives_ps}"
                )
            if wait_ps:
                yield RankedEvent(self.env).happen(wait_ps, ARRIVALS)
            self._deliver(arrival)
        self._to_come -= 1

    def _snapshots(self) -> Generator[simpy.Event, None, None]:
        """Let the router see the replicas anew from time to time, before the requests of that instant come."""
        while self._is_open and (at_ps := self._dispatcher.next_snapshot_ps(self._now_ps)) is not None:
            yield RankedEvent(self.env).happen(at_ps - self._now_ps, SNAPSHOT)
            self._moment.now_ps = at_ps
            self._dispatcher.take_snapshot()

    def _later(self, arrival: Arrival, ended_ps: int) -> Generator[simpy.Event, None, None]:
        """A request that follows another one of its session."""
        if arrival.arrives_ps < ended_ps:
            raise ArgumentError(
                f"request {arrival.request_id}: arrives_ps must be >= {ended_ps}, when the one before it ended, "
                f"got {arrival.arrives_ps}"
            )
        yield RankedEvent(self.env).happen(arrival.arrives_ps - self._now_ps, ARRIVALS)
        self._to_come -= 1
        self._deliver(arrival)

    def _deliver(self, arrival: Arrival) -> None:
        now_ps = self._moment.now_ps = self._now_ps
        index = self._dispatcher.pick(arrival)
        replica = self.replicas[index]
        self._latest_ps = max(self._latest_ps, now_ps)
        replica.arrive(arrival, now_ps)
        idle, timer = self._idle.pop(index, None), self._timers.get(index)
        if idle is not None:
            idle.happen(0, ARRIVALS + 1 + index)
        elif timer is not None and replica.end_ps < timer.due_ps:  # the request cut a jump
            self._timers[index] = timer.instead().happen(replica.end_ps - now_ps, ARRIVALS + 1 + index)

    def _ended(self, arrival: Arrival, at_ps: int) -> None:
        self._watcher.ended()
        if arrival.turns is None:
            return
        follows = arrival.turns.after(at_ps)
        if follows is not None:
            self._to_come += 1
            self.env.process(self._later(follows, at_ps))

    def _serving(self, index: int) -> Generator[simpy.Event, None, None]:
        """Let a replica run; nobody looks before the next event, so what ends earlier needs none of its own."""
        env, replica, rank = self.env, self.replicas[index], ARRIVALS + 1 + index
        interrupted = self._watcher.interrupted
        now_ps = self._now_ps
        while True:
            end_ps = replica.plan(now_ps)
            if end_ps is None:
                idle = self._idle[index] = RankedEvent(env)
                yield idle
                now_ps = self._now_ps
                self._moment.take_turn(index, now_ps)
                continue
            if end_ps >= env.peek():
                timer = self._timers[index] = RankedEvent(env).happen(end_ps - self._now_ps, rank)
                yield timer
                del self._timers[index]
                end_ps = replica.end_ps
            self._moment.take_turn(index, end_ps)
            replica.commit()
            self._latest_ps = max(self._latest_ps, end_ps)
            now_ps = end_ps
            if interrupted():
                raise _InterruptedError
