"""What `paceline validate --workload` does: compare simulated latencies under load with those on this machine.

One workload, whose requests are those of a recording, is served twice on the same cluster: simulated, and in a world
whose operations real models run, at their own seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from operator import ne
from pathlib import Path
from typing import Any, cast

from ..base.errors import ArgumentError, check_least, counted
from ..base.terminal import tracked
from ..decoding.legal_steps import Policy
from ..decoding.results import Deferred, Failed, Judged
from ..decoding.session import Session
from ..decoding.steps import Draft, PolicyError, Verify
from ..policies.about import about_of
from ..policies.chain_text import default_policies
from ..reports.serving import Promises, metrics_of
from ..reports.serving_tables import (
    FIGURES,
    HEADINGS,
    VALIDATED_LATENCIES,
    LoadCell,
    figures_of,
    half_range,
    load_cells_table,
    medians,
    validation_latency_table,
    worst_and_median,
)
from ..reports.tables import Grid, Printed, flat_rows
from ..runs.serving import ServingAbout, ServingLog
from ..runtime.clock import Clock
from ..runtime.forced import ForcedPool
from ..runtime.pools.members import loaded_pool
from ..runtime.pools.pool import ModelPool
from ..runtime.prompts import Prompt, prompts_of
from ..runtime.world import TorchWorld
from ..sim.contexts import TrieTables
from ..sim.cost.base import NOTHING_TO_DECIDE, CostModel
from ..sim.recorded import RecordedAnswers
from ..sim.serving.charges import to_ps
from ..sim.serving.cluster import Cluster, PlacedReplica, open_cluster
from ..sim.serving.replica import MakeWorld, ReplicaSpec, Role
from ..sim.serving.requests import DrawnRequests, ServedRequest
from ..sim.serving.routers import Dispatcher, RouterSetting
from ..sim.serving.serve import Served, serve
from ..sim.serving.world import Fed, Ran
from ..sim.simulate import seconds_to_decide
from ..traces.contexts.recording import TrieRecording
from ..traces.workloads import WorkloadOptions, with_options
from ..traces.workloads.arrival import Arrival, Turns, Workload, WorkloadAbout
from .decode import is_forced, load_pool
from .load import rising_rates
from .serving import recorder_of, shares_of
from .setting import NamedPolicy, PoliciesGiven, named_policies
from .validate import DecodedRuns, checked_cost, in_turns, members_that_run

# Tokens of prompt and answer by recorded request.
Lengths = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class AttachedWorkload:
    """The arrivals of a workload, each with the lengths of the recorded request drawn for it; implements `Workload`.

    Models read and write real text, so lengths cannot be others.
    """

    _workload: Workload
    _drawn: DrawnRequests  # has the recorded request of each arrival
    _lengths: Lengths  # of all recorded requests
    _name: str  # of the recording

    @property
    def about(self) -> WorkloadAbout:
        about = self._workload.about
        note = f"prompts and answers are those of recording {self._name}, not as long as the workload says"
        return replace(about, unit_tokens=0, notes=(*about.notes, note))

    def __iter__(self) -> Iterator[Arrival]:
        return map(self.attached, self._workload)

    def attached(self, arrival: Arrival) -> Arrival:
        """An arrival with the lengths of its recorded request."""
        prompt, output = self._lengths[self._drawn.of(arrival.request_id, arrival.tag)]
        if arrival.depths and arrival.depths[-1] > output:
            raise ArgumentError(
                f"request {arrival.request_id}: others follow {arrival.depths[-1]} tokens of its answer, "
                f"and that of its recorded request has {output}"
            )
        turns = None if arrival.turns is None else _AttachedTurns(arrival.turns, self)
        return arrival._replace(prompt_tokens=prompt, output_tokens=output, blocks=(), turns=turns, answer=())


@dataclass(frozen=True, slots=True)
class _AttachedTurns:
    """The next requests of a session, with recorded lengths; implements `Turns`."""

    _turns: Turns
    _workload: AttachedWorkload

    @property
    def depths(self) -> tuple[int, ...]:
        return self._turns.depths

    def reached(self, depth: int, at_ps: int) -> list[Arrival]:
        return [*map(self._workload.attached, self._turns.reached(depth, at_ps))]

    def after(self, ended_ps: int) -> list[Arrival]:
        return [*map(self._workload.attached, self._turns.after(ended_ps))]


class Stopwatch:
    """Seconds of work, one operation after another, of any replica; `clock` waits for all devices of the models.

    An operation takes the time since the end of the previous one: choosing steps, forming batches and bookkeeping are
    an engine's work too. Where the clock of the run skips idle time, almost none passes here.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended_s: float | None = None

    def start(self) -> None:
        """Note the start of an operation; only that of the first one counts."""
        if self._ended_s is None:
            self._ended_s = self._clock.now_s()

    def lap_s(self) -> float:
        """Seconds of the operation that ends now."""
        assert self._ended_s is not None
        before_s, self._ended_s = self._ended_s, self._clock.now_s()
        return self._ended_s - before_s


class ModelsWorld:
    """Runs the operations of one replica; implements `sim.serving.world.EngineWorld`.

    A request whose models write another token than the target did when it was recorded has **left** its record: by a
    near tie, since shapes of batches change rounding. From there on end-of-sequence tokens do not end it, so that it
    has as many tokens as in the workload.

    Args:
        models: the real world; of this replica only.
        answers: released when requests end; sessions are made from it.
        trunks: by recorded request, what the target wrote.
        left: takes the ids of requests that leave their records.
        stopwatch: that all replicas share.
    """

    def __init__(
        self,
        models: TorchWorld,
        answers: RecordedAnswers,
        trunks: Mapping[str, Sequence[int]],
        left: set[str],
        stopwatch: Stopwatch,
    ) -> None:
        self._models = models
        self._answers = answers
        self._trunks = trunks
        self._left = left
        self._stopwatch = stopwatch
        self._target = len(models.pool.members) - 1
        self.open, self.preempt, self.signal = models.open, models.preempt, models.signal

    def close(self, session: Session) -> None:
        self._models.close(session)
        self._answers.release(session.request_id)

    def draft(self, level: int, rows: Sequence[ServedRequest], fed: Fed = None) -> Ran:
        """See `EngineWorld`; raises as `verify`."""
        self._stopwatch.start()
        results = self._models.draft(level, [(row, cast(Draft, row.step)) for row in rows])
        _check_ran(rows, results.rows)
        return Ran.of(results, self._took_ps())

    def verify(
        self, level: int, rows: Sequence[ServedRequest], chunks: Sequence[ServedRequest] = (), fed: Fed = None
    ) -> Ran:
        """See `EngineWorld`.

        Raises:
            ValueError: a request failed in the models.
            MemoryError: a device has no room for what the blocks of the cluster hold.
        """
        self._stopwatch.start()
        items = [(row, cast(Verify, row.step)) for row in rows]
        results = self._models.verify(level, items, [(row, row.chunk) for row in chunks])
        _check_ran(rows, results.rows)
        if level == self._target:
            for request, row in zip(rows, results.rows, strict=True):
                self._compare(request, cast(Judged, row))
        return Ran.of(results, self._took_ps())

    def catch_up(self, level: int, rows: Sequence[ServedRequest]) -> int:
        """See `EngineWorld`; raises as `verify`."""
        self._stopwatch.start()
        self._models.verify(level, [], [(row, row.chunk) for row in rows])
        return self._took_ps()

    def _took_ps(self) -> int:
        if self._models.manager.evicted:
            raise _no_room(self._models.manager.evicted[0])
        return to_ps(self._stopwatch.lap_s())

    def _compare(self, session: ServedRequest, judged: Judged) -> None:
        """Note a request whose committed tokens are about to differ from the recorded ones."""
        start = len(session.emitted)
        written = [*session.tokens[: judged.num_accepted], judged.own_token]
        recorded = self._trunks[session.recorded_id][start : start + len(written)]
        if session.request_id not in self._left and any(map(ne, written, recorded)):
            self._left.add(session.request_id)
            session.eos = frozenset()


def _check_ran(sessions: Sequence[ServedRequest], rows: Sequence[object]) -> None:
    for session, row in zip(sessions, rows, strict=True):
        if isinstance(row, Failed):
            if isinstance(row.error, PolicyError):
                raise row.error
            raise ValueError(f"request {session.request_id} failed: {row.error}") from row.error
        if isinstance(row, Deferred):
            raise _no_room(session.request_id)


def _no_room(request_id: str) -> MemoryError:
    return MemoryError(
        f"request {request_id}: the models' device has no room for its keys and values; give the cluster fewer "
        "kv_blocks"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """A run in one of the worlds."""

    log: ServingLog
    tokens: Mapping[str, list[int]]  # of finished requests, by id
    served: Served  # what it has beside its log
    # requests whose models wrote another text than recorded; empty for a simulated run
    left: frozenset[str] = frozenset()


class ServedWorlds:
    """Both worlds, ready to serve; the models run the replicas of the cluster, one after another.

    `recording` is of the models, greedy. `cost` is that of every replica in the simulator, in place of the cluster's
    own; `seed` draws the requests.

    Raises:
        ArgumentError: a recording that is not greedy.
        ValueError: a cluster that the models do not support.
    """

    def __init__(
        self, models: ModelPool, recording: TrieRecording, cluster: Cluster, cost: CostModel, *, seed: int
    ) -> None:
        _check_cluster(cluster)
        if (mode := recording.meta.sampling.mode) != "greedy":
            raise ArgumentError(
                f"`recording` must be greedy: a request that is served twice would be sampled by its id, got {mode}"
            )
        if models.feature_level is not None:
            reader = models.members[models.feature_level].name
            raise ArgumentError(
                f"`pool` must not have a member that reads the target's states under load, got {reader}"
            )
        self._models = models
        self._recording = recording
        self._cluster = cluster
        self._cost = cost
        self._seed = seed
        self._tables = TrieTables(recording)
        # Held, so that none is read while seconds are measured.
        self._held = [self._tables.of(request.request_id) for request in recording.requests]
        self._trunks = {tables.request_id: tables.trunk_tokens for tables in self._held}

    def attached(self, workload: Workload) -> AttachedWorkload:
        """The arrivals of a workload, with the lengths of what models write."""
        lengths = {
            request.request_id: (len(request.prompt), len(self._trunks[request.request_id]))
            for request in self._recording.requests
        }
        drawn = DrawnRequests(self._recording.requests, seed=self._seed)
        return AttachedWorkload(workload, drawn, lengths, self._recording.meta.name)

    def build(self, policy: NamedPolicy) -> Policy:
        """A policy for the models; raises ArgumentError for one that may write unrecorded text."""
        about = about_of(policy.build(loaded_pool(self._models)))
        if about is not None and not about.lossless:
            raise ArgumentError(f"`policies` must be lossless: what others write was not recorded, got {policy.name}")
        return policy.admitted(loaded_pool(self._models), lossless=True)

    def simulated(self, policy: NamedPolicy, workload: AttachedWorkload) -> ServedRun:
        """Serve from the recording, at the seconds of the cost; raises PolicyError for a lossy step, too."""
        count = len(self._cluster.replicas)
        policies = [policy.admitted(self._tables.pool, lossless=True) for _ in range(count)]
        return self._served(policy.name, policies, workload, None, set())

    def measured(self, policy: NamedPolicy, workload: AttachedWorkload) -> ServedRun:
        """Serve with the models, at their own seconds; raises as `ModelsWorld.verify`."""
        policies = [self.build(policy) for _ in self._cluster.replicas]
        worlds = [TorchWorld(pool=self._models, sampling=self._recording.meta.sampling) for _ in policies]
        left: set[str] = set()
        stopwatch = Stopwatch(Clock(one.model.device for one in self._models.members if one.model is not None))
        waiting = iter(worlds)

        def make_world(_: object, answers: RecordedAnswers) -> ModelsWorld:
            return ModelsWorld(next(waiting), answers, self._trunks, left, stopwatch)

        return self._served(policy.name, policies, workload, make_world, left)

    def _served(
        self,
        name: str,
        policies: list[Policy],
        workload: AttachedWorkload,
        make_world: MakeWorld | None,
        left: set[str],
    ) -> ServedRun:
        replicas, router = self._cluster.replicas, self._cluster.router
        recorder = recorder_of(self._tables, replicas)
        picks = router.build(RouterSetting(num_replicas=len(replicas), seed=self._seed))
        tokens: dict[str, list[int]] = {}
        horizon_s = self._cluster.horizon_s
        said = serve(
            workload,
            self._tables,
            [self._spec(name, policy, replica, make_world) for policy, replica in zip(policies, replicas, strict=True)],
            dispatch=lambda served: Dispatcher(picks, router.label, served, to_ps(self._cluster.stale_s)),
            recorder=recorder,
            horizon_ps=None if horizon_s is None else to_ps(horizon_s),
            seed=self._seed,
            outputs=tokens,
        )
        about = ServingAbout(policy=name, workload=workload.about.name, cluster=self._cluster.name, seed=self._seed)
        return ServedRun(log=recorder.log(about), tokens=tokens, served=said, left=frozenset(left))

    def _spec(self, name: str, policy: Policy, replica: PlacedReplica, make_world: MakeWorld | None) -> ReplicaSpec:
        return ReplicaSpec(
            policy=policy,
            policy_name=name,
            cost=self._cost,
            limits=replica.limits,
            # With models, time between operations counts, which includes deciding.
            decide_s=seconds_to_decide(policy, self._cost, None) if make_world is None else NOTHING_TO_DECIDE,
            make_world=make_world,
        )


def _check_cluster(cluster: Cluster) -> None:
    """Raise ValueError, which names the replica, for what the models do not support."""
    for replica in cluster.replicas:
        where = f"cluster {cluster.name}, replica {replica.name}"
        if replica.policy is not None:
            raise ValueError(
                f"{where}: policy must be left out, since every replica runs the policies that are validated, got "
                f"{replica.policy!r}"
            )
        if replica.role != Role.both:
            raise ValueError(f"{where}: role must be both, since real models hand over nothing, got {replica.role}")
        for member, limits in replica.limits.kv.items():
            if limits.prefix_cache:
                raise ValueError(
                    f"{where}: prefix_cache must be false, since models have none in this check, got true for {member}"
                )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadValidation(Printed):
    """The results of serving a workload in both worlds; prints as `paceline validate --workload` does."""

    meta: Mapping[str, Any]  # what was compared: pool, recording, workload, cluster, cost and so on
    cells: tuple[LoadCell, ...]  # every rate and policy

    @property
    def errors(self) -> tuple[float, float]:
        """(the largest median error of mean latencies over all cells, the worst).

        Infinite where only one world finished anything, or neither did.
        """
        found = worst_and_median(self.cells)
        means = [found[name] for latency in VALIDATED_LATENCIES if (name := f"{latency}_mean") in found]
        return max((one["median"] for one in means), default=inf), max((one["worst"] for one in means), default=inf)

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/validation.md)."""
        errors = worst_and_median(self.cells)
        return {
            **self.meta,
            "errors": {
                name: {key: None if error == inf else error for key, error in of.items()} for name, of in errors.items()
            },
            "cells": [asdict(cell) | {"errors": cell.errors()} for cell in self.cells],
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each cell."""
        return flat_rows([asdict(cell) | {"errors": cell.errors()} for cell in self.cells])

    def tables(self) -> Sequence[Grid]:
        meta = self.meta
        title = (
            f"pool {meta['pool']} in the loop against recording {meta['trace']}; workload {meta['workload']}, cluster "
            f"{meta['cluster']}, cost {meta['cost']}, medians of {counted(meta['runs'], 'run')}"
        )
        first = load_cells_table(self.cells, title=title)
        return [first, *(validation_latency_table(self.cells, latency) for latency in VALIDATED_LATENCIES)]

    def lines(self) -> Sequence[str]:
        found = worst_and_median(self.cells)
        means = ", ".join(
            f"{HEADINGS[latency]} {errors['median']:.1%} ({errors['worst']:.1%})"
            for latency in VALIDATED_LATENCIES
            if (errors := found.get(f"{latency}_mean")) is not None
        )
        equal = sum(cell.equal for cell in self.cells)
        left = sum(cell.left for cell in self.cells)
        near = [f"{counted(left, 'request')} left the record by a near tie of two tokens"] if left else []
        counts = [(cell.emitted, cell.cycled, cell.modelled) for cell in self.cells]
        lone = sum(inf in map(cell.error, FIGURES) for cell in self.cells)
        told = f"only one world has some figure in {counted(lone, 'cell')}: its error counts as infinite"
        return [
            *self.meta["notes"],
            *shares_of(*map(sum, zip(*counts, strict=True))),
            *near,
            *([told] if lone else []),
            f"means are off in the median (at worst) by: {means or 'nothing finished'}",
            f"equal work in {equal} of {counted(len(self.cells), 'cell')}",
        ]


def validate_under_load(
    pool: ModelPool | Path | str | None,
    prompts: Path | Sequence[Prompt | str],
    recording: Path | str,
    policies: PoliciesGiven | None = None,
    *,
    workload: str | Path,
    cluster: str | Path,
    rates: Sequence[float] | None = None,
    cost: str = "here",
    limit: int | None = None,
    runs: int = 3,
    seed: int = 0,
    allow_foreign_profile: bool = False,
    threads: int = 1,
    debug: bool = False,
    chat: bool = False,
) -> LoadValidation:
    """Serve a workload on the models and in the simulator, and compare latencies and throughput.

    Arrivals, router, batches, chunks of prefills and blocks are those of the simulated engine in both worlds, on its
    clock; with the models, an operation takes their seconds. Arguments not described here are as of `validate`, without
    forced pools.

    `recording` is greedy; requests of the workload get its prompts, and answers as long as it has. `policies` are
    lossless. `workload` is a file of requests, or a generator's text, for times of arrival; `limit` is of arrivals.
    `cluster` is a TOML file, or a device of the sheet, without prefix caches. `rates` are mean arrivals per second, > 0
    each; None: the workload's own. `seed` is of all random draws.

    Raises:
        ValueError: a recording, workload, cluster, policy or cost that cannot be used, or a request that failed.
        MemoryError: a device has no room for what the blocks of the cluster hold.
    """
    check_least("`runs`", runs, 1)
    asked = rising_rates(rates)
    models = _loaded(pool, threads=threads, debug=debug, chat=chat)
    trace = DecodedRuns(models, prompts_of(prompts), Path(recording)).recording
    opened = [with_options(workload, WorkloadOptions(rate=rate, limit=limit, seed=seed), trace) for rate in asked]
    served_on = open_cluster(cluster, trace)
    named = named_policies(default_policies(loaded_pool(models)) if policies is None else policies)
    runs_of = members_that_run([policy.build(loaded_pool(models)) for policy in named])
    priced = checked_cost(cost, trace, models, threads=threads, allow_foreign=allow_foreign_profile, runs=runs_of)
    worlds = ServedWorlds(models, trace, served_on, priced.cost, seed=seed)
    for policy in named:
        worlds.build(policy)
    attached = [(rate, worlds.attached(arrivals)) for rate, arrivals in zip(asked, opened, strict=True)]
    jobs = [(policy, rate, arrivals) for rate, arrivals in attached for policy in named]
    # Replays come first: they are fast and may raise.
    told = tracked(jobs, "replaying", total=len(jobs), unit="runs")
    replays = [worlds.simulated(policy, arrivals) for policy, _, arrivals in told]
    measured = in_turns("serving", [partial(worlds.measured, policy, arrivals) for policy, _, arrivals in jobs], runs)
    both = zip(jobs, replays, measured, strict=True)
    cells = tuple(_cell(policy.name, rate, replay, found) for (policy, rate, _), replay, found in both)
    meta: dict[str, Any] = {
        "pool": models.name,
        "trace": trace.meta.name,
        "workload": str(workload),
        "cluster": served_on.name,
    }
    meta |= {"rates": None if rates is None else list(rates), "runs": runs, "seed": seed, "threads": threads}
    return LoadValidation(meta=meta | priced.about(attached[0][1].about.notes), cells=cells)


def _loaded(pool: ModelPool | Path | str | None, *, threads: int, debug: bool, chat: bool) -> ModelPool:
    """The models of a pool; raises ArgumentError for a forced one."""
    if isinstance(pool, ForcedPool) or is_forced(pool):
        raise ArgumentError("`workload` goes with a pool of trained models, whose text is their own, not a forced one")
    return load_pool(pool, threads=threads, debug=debug, chat=chat)


def _cell(policy: str, rate: float | None, ours: ServedRun, runs: Sequence[ServedRun]) -> LoadCell:
    theirs = runs[-1]
    simulated, *figures = (figures_of(metrics_of(run.log, Promises()).to_json()) for run in (ours, *runs))
    both = ours.tokens.keys() & theirs.tokens.keys()
    return LoadCell(
        policy=policy,
        rate=rate,
        requests=len(ours.log.requests["request_id"]),
        finished=(len(ours.tokens), len(theirs.tokens)),
        preemptions=(len(ours.log.preemptions["request"]), len(theirs.log.preemptions["request"])),
        simulated=simulated,
        measured=medians(figures),
        spread=half_range([run["e2e_s_mean"] for run in figures if "e2e_s_mean" in run]),
        other_answers=sum(ours.tokens[request_id] != theirs.tokens[request_id] for request_id in both),
        left=len(frozenset().union(*(run.left for run in runs))),
        emitted=ours.served.num_emitted,
        cycled=ours.served.num_cycled,
        modelled=ours.served.num_modelled,
        equal=ours.log.meta.levels == theirs.log.meta.levels,
    )
