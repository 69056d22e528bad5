"""One served run: requests arrive, a router sends each to a replica, SimPy moves the clock.

At one instant, arrivals come first, in the order of the workload, then replicas by index.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import simpy

from ...base.errors import ArgumentError
from ...policies.about import about_of
from ...runs.recorder import ServingRecorder, WrongArrivalError
from ...traces.workloads.arrival import MOST_PS, Workload
from ..replay_tables import ReplayTables, check_observed
from ..rounds_once import SharedRounds
from ..simulate import paused_collector
from .apart import DecodeReplica, Handovers, PrefillReplica
from .engine import Replica
from .replica import ReplicaSpec, Role, ServedFrom, Transfer
from .requests import Deadline, DrawnRequests
from .routers import Dispatcher
from .running import (
    Arrivals,
    InterruptedRunError,
    Moment,
    RunningReplicas,
    Watcher,
    stop_if_interrupted,
)


def make_replica(
    index: int,
    spec: ReplicaSpec,
    shared: ServedFrom,
    handovers: Handovers | None,
    *,
    stepwise: bool,
) -> Replica:
    """The replica at an index of a run; without `handovers` all prefill and decode; `stepwise`: by single steps."""
    if spec.role != Role.both:
        assert handovers is not None, "`make_cluster` checks what roles need"
        kind = PrefillReplica if spec.role == Role.prefill else DecodeReplica
        return kind(index, spec, shared, handovers)
    # A foreign world may be shared by others, and requested single steps run in turn.
    return Replica(index, spec, shared, may_lag=not stepwise and spec.make_world is None)


# Makes the router of a run.
Dispatch = Callable[[Sequence[Replica]], Dispatcher]

# Reasons for a stop; the last: a log holds no later time.
INTERRUPTED, HORIZON, LATEST = "interrupted", "horizon", "latest time of a log"
BROKEN = "error in the workload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Results of a run in addition to its log."""

    num_emitted: int  # output tokens
    num_cycled: int  # of these, tokens after the first pass of a recorded answer
    num_modelled: int  # decisions that were modelled rather than replayed
    stopped: str  # why the run was stopped before all requests had ended; "" if it was not
    paths: tuple[str, ...]  # how the steps of each replica were computed, in words


def serve(
    workload: Workload,
    tables: ReplayTables,
    replicas: Sequence[ReplicaSpec],
    *,
    dispatch: Dispatch,
    recorder: ServingRecorder,
    transfer: Transfer | None = None,
    horizon_ps: int | None = None,
    seed: int = 0,
    strict: bool = False,
    deadlines: Mapping[str, Deadline | None] | None = None,
    outputs: dict[str, list[int]] | None = None,
    watcher: Watcher | None = None,
    stepwise: bool = False,
    rounds: SharedRounds | None = None,
) -> Served:
    """Serve a workload to its end, or to the horizon.

    A replica whose policy decides only by pending tokens adds up whole cycles while all requests decode and no state is
    read: figures are the same, to the picosecond. `Served.paths` and the recorder have the path of each replica.

    Args:
        workload: requests; acceptance is drawn for them from `tables`.
        tables: of a recording.
        replicas: at least one, each with a policy object of its own.
        dispatch: makes a router for some of these replicas: those that prefill, and those that only decode.
        recorder: of all events, also if the run is interrupted or fails; with the members of the pool and these
            replicas.
        transfer: from replicas that prefill to those that decode; None: all do both.
        horizon_ps: the run is stopped then, in [1, MOST_PS]; None: it ends with the last request, or at `MOST_PS`.
        seed: of drawn acceptance, and of modelled decisions.
        strict: raise for what is not recorded instead of modelling it.
        deadlines: of tokens by class of service levels, for policies that read them; "" is for all classes that are not
            named.
        outputs: takes the tokens of every finished request by its id; None drops them.
        watcher: observes the run, and may stop it.
        stepwise: run every step by itself, for any policy.
        rounds: known from earlier runs with these tables, seed and strictness; None: none are.

    Raises:
        ArgumentError: no replica, a policy that two replicas share or that is an oracle, a horizon out of range, a tag
            that the recording lacks, an arrival earlier than the one before it.
        PolicyError: a policy broke the contract.
        RouterError: a router did.
        UnrecordedContextError: `strict`, and a decision is not recorded.
        CostRangeError: an operation outside the range of a cost model.
        KeyboardInterrupt: after the recorder was completed, perhaps within an operation.
    """
    _check(replicas, tables, horizon_ps)
    answers = tables.answers(seed=seed, strict=strict)
    shared = partial(
        ServedFrom,
        pool=tables.pool,
        answers=answers,
        rounds=rounds or SharedRounds(tables.pool, answers),
        drawn=DrawnRequests(tables.trace.requests, seed=seed),
        unit_tokens=workload.about.unit_tokens,
        deadlines=deadlines or {},
        recorder=recorder,
        outputs=outputs,
    )
    run = _Run(workload, replicas, dispatch, shared, watcher or Watcher(), transfer, stepwise=stepwise)
    return run.go(horizon_ps)


def _check(replicas: Sequence[ReplicaSpec], tables: ReplayTables, horizon_ps: int | None) -> None:
    if not replicas:
        raise ArgumentError("`replicas` must hold at least one")
    if len({id(spec.policy) for spec in replicas}) < len(replicas):
        raise ArgumentError("`replicas` must not share a policy object: what it learns is of one replica")
    if horizon_ps is not None and not 0 < horizon_ps <= MOST_PS:
        raise ArgumentError(f"`horizon_ps` must be in [1, {MOST_PS}], got {horizon_ps}")
    if tables.pool.feature_level is not None:
        reader = tables.pool.names[tables.pool.feature_level]
        raise ArgumentError(f"`trace` must not be of a member that reads the target's states under load, got {reader}")
    for spec in replicas:
        check_observed(spec.policy, spec.policy_name, tables)
        about = about_of(spec.policy)
        if about is not None and about.oracle:
            raise ArgumentError(f"policy {spec.policy_name} sees ahead, which only replay without load allows")


class _Run:
    """The replicas of a run, their requests, and the end of the run."""

    _arrivals: Arrivals
    _running: RunningReplicas

    def __init__(
        self,
        workload: Workload,
        replicas: Sequence[ReplicaSpec],
        dispatch: Dispatch,
        shared: Callable[..., ServedFrom],
        watcher: Watcher,
        transfer: Transfer | None,
        *,
        stepwise: bool,
    ) -> None:
        self._env = env = simpy.Environment(initial_time=0)
        self._moment = moment = Moment()
        whole = shared(
            on_ended=lambda arrival, at_ps: self._arrivals.ended(arrival, at_ps),
            on_reached=lambda arrival, depth, at_ps: self._arrivals.reached(arrival, depth, at_ps),
        )
        self._recorder = whole.recorder
        wakes = (env, moment, lambda index: self._running.wake(index))
        self._handovers = None if transfer is None else Handovers(transfer, whole.recorder, *wakes)
        self._replicas = [
            make_replica(index, spec, whole, self._handovers, stepwise=stepwise) for index, spec in enumerate(replicas)
        ]
        self._running = RunningReplicas(env, moment, self._replicas, partial(stop_if_interrupted, watcher))
        first = self._handovers.connect(self._replicas, dispatch) if self._handovers else dispatch(self._replicas)
        self._arrivals = Arrivals(env, moment, workload, first, self._running, watcher, whole.drawn)

    def go(self, horizon_ps: int | None) -> Served:
        """Run to the end, the horizon, or an interrupt; the recorder is completed in any case."""
        stopped = ""
        try:
            with paused_collector():
                stopped = self._stopped_by(horizon_ps)
        except BaseException as error:
            if isinstance(error, WrongArrivalError) or (isinstance(error, ValueError) and self._arrivals.is_broken):
                self._running.catch_up()  # all is served up to the instant of a row that cannot be read
                stopped = BROKEN
            else:
                stopped = INTERRUPTED if isinstance(error, KeyboardInterrupt) else f"failed: {type(error).__name__}"
            raise
        finally:
            ended_ps = max(self._moment.now_ps, *(replica.books.noted_ps for replica in self._replicas))
            for index, replica in enumerate(self._replicas):
                replica.close_books(ended_ps)
                self._recorder.path(index, replica.path)
            if self._handovers is not None:
                self._handovers.close_books(ended_ps)
            self._recorder.sessions(self._arrivals.sessions.took)
            if stopped:
                self._recorder.stopped(ended_ps, stopped)
        return Served(
            num_emitted=sum(replica.books.num_emitted for replica in self._replicas),
            num_cycled=sum(replica.books.num_cycled for replica in self._replicas),
            num_modelled=sum(replica.num_modelled for replica in self._replicas),
            stopped=stopped,
            paths=tuple(replica.path for replica in self._replicas),
        )

    def _stopped_by(self, horizon_ps: int | None) -> str:
        """Run; returns what stopped it before all requests had ended, "" for nothing."""
        until_ps = MOST_PS if horizon_ps is None else horizon_ps
        try:
            self._env.run(until=until_ps)
        except InterruptedRunError:
            self._running.catch_up()
            return INTERRUPTED
        self._moment.now_ps = until_ps
        self._running.catch_up()
        if not (self._arrivals.is_open or self._running.is_open):
            return ""
        return LATEST if horizon_ps is None else HORIZON
