"""What `simulate` and `metrics` do: serve one workload under one policy, and compute the figures of such runs.

`serving_setting` gathers the options. `serving_run` is one run; `compare_under_load` makes one for each row and seed.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import ArgumentError, check_within, counted, innermost
from ..base.terminal import Interrupts, Progress, held_interrupts
from ..decoding.seen import Start, start_of
from ..policies.about import about_of, members_run_by
from ..reports.comparison import kind_of
from ..reports.cost_range import ranges_table
from ..reports.limits import seconds_of
from ..reports.panels import Panel, Section, Series, over_time
from ..reports.sections import latency_intervals
from ..reports.serving import Promises, ServiceLevels, by_class, metrics_of
from ..reports.serving_tables import MeasuredRun, SeedRow, ServingReport, names_of, seed_rows
from ..reports.tables import Grid, Printed, flat_rows
from ..runs.log import Columns
from ..runs.recorder import RepeatedIdError, ServingRecorder
from ..runs.serving import ServingAbout, ServingLog, read_serving, write_serving
from ..sim.cost.base import CostModel, CostRangeError
from ..sim.cost.by_name import scaled_by_name
from ..sim.cost.devices import device_named
from ..sim.cost.kernels import KernelCost
from ..sim.cost.roofline import RooflineCost, device_sheet
from ..sim.replay_tables import ReplayTables, tables_of
from ..sim.rounds_once import SharedRounds
from ..sim.serving.charges import to_ps
from ..sim.serving.cluster import Cluster, PlacedReplica, elsewhere, open_cluster
from ..sim.serving.replica import ReplicaSpec, Role
from ..sim.serving.requests import Deadline
from ..sim.serving.routers import Dispatcher, RouterSetting, WatchedReplica
from ..sim.serving.running import Watcher
from ..sim.serving.serve import BROKEN, INTERRUPTED, Dispatch, Served, serve
from ..sim.simulate import seconds_to_decide
from ..traces.recording import Recording
from ..traces.workloads import Workload, WorkloadOptions, with_options
from ..traces.workloads.arrival import MOST_PS, PS_PER_S, ClosedLoopOptions, WorkloadChanges
from ..traces.workloads.formats import repeated_id_error
from ..traces.workloads.workload import one_by_one
from .compare import built
from .options import Promised, ReplayOptions, ServingOptions, SimulateOptions, checked, shared, takes
from .setting import NamedPolicy, PolicyGiven, Setting, named_policy, setting_of


class BrokenWorkloadError(ValueError):
    """A row of a workload cannot be read or served; the message is that of `error`.

    `log` is of the run until that row's arrival, marked partial, with the error among its notes. `run` is the same with
    its figures, a `Simulated`, where `simulate` raises it; else None.
    """

    def __init__(self, log: ServingLog, error: ValueError) -> None:
        super().__init__(str(error))
        self.log = log
        self.error = error
        self.run: Printed | None = None


Run = ServingLog | str | Path


def metrics(runs: Run | Sequence[Run], *, slo: Promised | None = None) -> ServingReport:
    """Latencies, throughput, goodput, memory and acceptance of serving runs (docs/glossary.md defines them).

    Args:
        runs: one or several: folders that `paceline simulate --out` wrote, or logs. Those that differ in their seed
            alone become one row with 95% intervals.
        slo: the longest times that meet a promise, by name: `ttft`, `tpot`, `e2e`, `queue`. By the name of a class of
            requests, those of that class: `{"chat": {"ttft": "200ms"}, "e2e": 60}`. A number is seconds; one so large
            that milliseconds are likelier must say its unit.

    Raises:
        ArgumentError: no run, a bad promise, or one to a class that no request of the runs has.
        TraceFormatError: a folder without a valid run; one line.
        ValueError: a setting repeated at the same seed.
    """
    given = [runs] if isinstance(runs, ServingLog | str | Path) else list(runs)
    if not given:
        raise ArgumentError("`runs` must hold one, got none")
    promised = promises(slo or {})
    logs = [
        (f"run {number + 1}", run) if isinstance(run, ServingLog) else (str(run), read_serving(Path(run)))
        for number, run in enumerate(given)
    ]
    refuse_unknown_classes(promised, {name for _, log in logs for name in (*by_class(log), *log.meta.about.classes)})
    measured = [measured_run(log, name, promised, alone=True) for name, log in logs]
    return ServingReport(rows=seed_rows(measured), promised=promised)


def measured_run(log: ServingLog, name: str, promised: Promises, *, alone: bool = False) -> MeasuredRun:
    """The figures of a run, with its name for remarks; `alone`: also intervals from this run alone."""
    found = metrics_of(log, promised)
    (flat,) = flat_rows([found.to_json()])
    intervals = latency_intervals(log) if alone else {}
    return MeasuredRun(folder=name, meta=log.meta, metrics=found, flat=flat, intervals=intervals)


def promises(slo: Promised) -> Promises:
    """Service levels, those of all and those by class; raises ArgumentError for a bad name or time."""
    of_all = {name: seconds for name, seconds in slo.items() if not isinstance(seconds, Mapping)}
    of_classes = {name: levels for name, levels in slo.items() if isinstance(levels, Mapping)}
    return Promises(
        others=_levels(of_all, ""), classes={name: _levels(levels, f"{name}:") for name, levels in of_classes.items()}
    )


def refuse_unknown_classes(promised: Promises, known: Collection[str]) -> None:
    """Raises ArgumentError for a promise to a class that is not among `known`; "" among them stands for no class."""
    for name in promised.classes:
        if name not in known or not name:
            classes = ", ".join(sorted(filter(None, known))) or "none"
            raise ArgumentError(f"`slo` must name a class of the requests ({classes}), got {name!r}")


def _levels(slo: Mapping[str, float | str], before: str) -> ServiceLevels:
    known, found = [field.name for field in fields(ServiceLevels)], dict[str, float]()
    for name, time in slo.items():
        if name not in known:
            raise ArgumentError(f"`slo` must name one of {', '.join(known)}, got {before + name!r}")
        found[name] = seconds_of(str(time), name, f"`slo` {before}{name}")
        check_within(f"`slo` {before}{name}", found[name], "(0, inf)")
    return ServiceLevels(**found)


ENDS = 4  # of a whole cost; for one policy the first and the last, the fastest and the slowest, are enough
# Options that apply to one cost; a cluster has one for each replica.
OF_ONE_COST = ("tensor_parallel", "efficiency", "extrapolate", "on", "allow_foreign_profile")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSetting:
    """The setting in which a workload is served; raises ArgumentError for a horizon out of range."""

    replay: Setting  # the recording, and the options of any replay
    cluster: Cluster  # that serves, at the requested seconds
    workload: str  # a path, or a generator's text
    changes: WorkloadOptions  # changes to it, except rate and seed
    horizon_s: float | None  # simulated seconds after which a run is stopped; None: it runs to its end
    promised: Promises  # service levels by class of request

    def __post_init__(self) -> None:
        if self.horizon_s is not None:
            check_within("`horizon_s`", self.horizon_s, f"(0, {MOST_PS // PS_PER_S}]")

    @property
    def recording(self) -> Recording:
        """The recording that acceptance is drawn from."""
        return self.replay.recording

    @property
    def deadlines(self) -> dict[str, Deadline | None]:
        """The deadlines that policies see, by class; "" for all others.

        None if a class lacks a promise to the first token or for each further one.
        """
        found: dict[str, Deadline | None] = {}
        for name, levels in {"": self.promised.others, **self.promised.classes}.items():
            ttft, tpot = levels.ttft, levels.tpot
            found[name] = None if ttft is None or tpot is None else Deadline(ttft, tpot)
        return found

    def check_classes(self, workload: Workload) -> None:
        """Check that every class with a promise has a request in the workload; reads it until all classes have come.

        Raises ArgumentError with the name of a missing class.
        """
        missing, known = set[str | None](self.promised.classes), {""}
        arrivals = one_by_one(workload) if missing else iter(())
        for arrival in arrivals:
            known.add(arrival.slo)
            missing.discard(arrival.slo or None)  # no class has no name
            if not missing:
                return
        refuse_unknown_classes(self.promised, known)

    def opened(self, rate: float | None, seed: int) -> Workload:
        """The workload at a rate; the same rate and seed give the same requests, for any policy."""
        return with_options(self.workload, replace(self.changes, rate=rate, seed=seed), self.recording)

    def tables(self, seed: int) -> ReplayTables:
        """The recording for replay; where acceptance is shifted, each seed has its own."""
        shifts = self.replay.shift_acceptance
        return tables_of(self.recording.shifted(shifts, seed=seed) if shifts else self.recording)

    def with_replicas(self, changed: Callable[[PlacedReplica], PlacedReplica]) -> "ServingSetting":
        """The same on a cluster whose replicas are changed."""
        replicas = tuple(map(changed, self.cluster.replicas))
        return replace(self, cluster=replace(self.cluster, replicas=replicas))

    def ends(self) -> "tuple[ServingSetting, ...]":
        """The same at the ends of its costs' ranges (`CostModel.ends`); () if none has any."""
        known = {id(replica.cost): replica.cost.ends(whole=True) for replica in self.cluster.replicas}

        def at_end(index: int, replica: PlacedReplica) -> PlacedReplica:
            costs = known[id(replica.cost)]
            return replace(replica, cost=costs[index]) if costs else replica

        return tuple(self.with_replicas(partial(at_end, index)) for index in range(max(map(len, known.values()))))

    def asked(self) -> dict[str, Any]:
        """Everything that runs have in common, for their logs; without defaults."""
        told: dict[str, Any] = {"trace": self.recording.about.name, "router": self.cluster.router.label}
        defaults = Setting(recording=self.recording)
        for name in (one.name for one in fields(ReplayOptions)):
            value = getattr(self.replay, name)
            if name == "models" and value:
                told[name] = dict(value) if isinstance(value, Mapping) else list(value)
            elif name not in {"models", "seed"} and value not in (getattr(defaults, name), {}):
                told[name] = dict(value) if isinstance(value, Mapping) else str(value) if name == "cost" else value
        told |= {name: value for name, value in self.changes.given().items() if name not in {"rate", "seed"}}
        if self.horizon_s is not None:
            told["horizon_s"] = self.horizon_s
        deadlines = {name: list(due) for name, due in self.deadlines.items() if due is not None}
        if deadlines:
            told["deadlines"] = deadlines
        if self.cluster.stale_s:
            told["stale_s"] = self.cluster.stale_s
        if self.cluster.transfer is not None:
            told["transfer"] = asdict(self.cluster.transfer)
        # A file that was changed between two runs keeps its name: its content distinguishes them.
        told["replicas"] = {
            name: group_to_json(alike) | {"kv": {member: kv.told for member, kv in alike[0].limits.kv.items()}}
            for name, alike in self.cluster.groups.items()
        }
        return told


def group_to_json(alike: Sequence[PlacedReplica]) -> dict[str, Any]:
    """A group of replicas with the same limits, without its memory."""
    first = alike[0]
    return {
        "count": len(alike),
        "role": str(first.role),
        "policy": first.policy,
        "cost": first.cost_name,
        "max_num_seqs": first.limits.max_num_seqs,
        "token_budget": first.limits.token_budget,
        "preemption": str(first.limits.preemption),
        "admission": str(first.limits.admission),
        "shared_prefix": None if first.limits.shared_prefix is None else asdict(first.limits.shared_prefix),
        "max_model_len": dict(first.limits.max_model_len),
        "offload": None if first.limits.offload is None else asdict(first.limits.offload),
    }


def serving_setting(
    recording: Recording | str | Path | None,
    workload: str | Path,
    cluster: str | Path,
    asked: ServingOptions,
    *,
    cost: CostModel | None = None,
) -> ServingSetting:
    """The setting; arguments are those of `simulate`, and `asked` holds its other options.

    Without `cost` in `asked` and here, replicas have their own. Raises ValueError, one line, for an option out of its
    range, or one that contradicts others.
    """
    replay = setting_of(recording, asked)
    if replay.start is not None and start_of(replay.start) != Start.prefill:
        raise ArgumentError(f"`start` must be prefill under a workload: engines read prompts first, got {replay.start}")
    if replay.decide_s is not None:
        check_within("`decide_s`", replay.decide_s, "[0, 1e9]")
    changes = shared(WorkloadChanges, asked) | shared(ClosedLoopOptions, asked)
    if replay.cost is not None:
        cost = replace(replay, models=None).priced()  # a cluster uses shapes for its memory
    engine = replay.engine if replay.cost is None else None
    split = replay.tensor_parallel if str(cluster) in device_sheet() else 1
    opened = open_cluster(cluster, replay.recording, engine=engine, tensor_parallel=split, cost=cost)
    priced = _priced(opened, replay, split)
    return ServingSetting(
        replay=replay,
        cluster=priced,
        workload=str(workload),
        changes=WorkloadOptions(seed=replay.seed, **changes),
        horizon_s=priced.horizon_s if asked.horizon_s is None else asked.horizon_s,
        promised=promises(asked.slo or {}),
    )


def _check_device(cluster: Cluster, replay: Setting) -> None:
    """Raise ArgumentError for the seconds of one device, or of some, with the memory of another, or of more."""
    option, given = ("cost", str(replay.cost)) if replay.on is None else ("on", replay.on)
    cost, named = cluster.replicas[0].cost, device_named(given)
    lying = sorted({device for replica in cluster.replicas for device in replica.placement.values()})
    others = elsewhere(cost, lying) if named is None else [device for device in lying if device != named.device.name]
    if others:
        rule = f"must be left out, or the device of `cluster`, {others[0]}: its memory and its seconds go together"
        raise ArgumentError(f"`{option}` {rule}, got {given}")
    splits = sorted({replica.tensor_parallel for replica in cluster.replicas})
    of_a_device = replay.on is not None or isinstance(innermost(cost), RooflineCost | KernelCost)
    if of_a_device and splits != [replay.tensor_parallel]:
        rule = f"must be that of every replica of {cluster.name} ({', '.join(map(str, splits))}), or `cost` be left out"
        raise ArgumentError(f"`tensor_parallel` {rule}: memory and seconds go together, got {replay.tensor_parallel}")


def _priced(cluster: Cluster, replay: Setting, split: int) -> Cluster:
    """The cluster at the requested seconds: its replicas have the one cost already, or each its own, scaled.

    `split` are the devices that its members are split over by the request, 1 by default.
    """
    if replay.cost is not None:
        _check_device(cluster, replay)
        return cluster
    defaults = Setting(recording=replay.recording, tensor_parallel=split)
    unused = [name for name in OF_ONE_COST if getattr(replay, name) != getattr(defaults, name)]
    if unused:
        raise ArgumentError(
            f"`{unused[0]}` goes with `cost`: without it a cluster has seconds of its own, got {unused[0]} "
            f"{getattr(replay, unused[0])} alone"
        )
    if not replay.scale:
        return cluster
    scaled = {
        id(replica.cost): scaled_by_name(replica.cost, replay.scale, replay.recording) for replica in cluster.replicas
    }
    return replace(
        cluster,
        replicas=tuple(
            replace(replica, cost=scaled[id(replica.cost)], cost_name=scaled[id(replica.cost)].name)
            for replica in cluster.replicas
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched(Watcher):
    """Shows progress, and handles interrupts."""

    interrupts: Interrupts  # that came so far
    on_ended: Callable[[], None]  # called for each request that finished or was rejected

    def ended(self) -> None:
        self.on_ended()

    def interrupted(self) -> bool:
        return self.interrupts.heard()


def policies_of(setting: ServingSetting, policy: NamedPolicy | None) -> list[NamedPolicy]:
    """The policy of each replica: its own, else the run's; one that prefills for others uses none, and gets any.

    Raises ArgumentError where a replica has none, or no replica is left for the run's.
    """
    replicas = setting.cluster.replicas
    own = {
        text: named_policy(text) for text in dict.fromkeys(replica.policy for replica in replicas) if text is not None
    }
    without = [replica for replica in replicas if replica.policy is None and replica.role != Role.prefill]
    if policy is None and without:
        raise ArgumentError(f"`policy` must be given: replica {without[0].name} of {setting.cluster.name} has none")
    if policy is not None and not without:
        raise ArgumentError(
            f"`policy` must be left out: every replica of {setting.cluster.name} has its own, got {policy.name}"
        )
    run = next(iter(own.values())) if policy is None else policy
    return [run if replica.policy is None else own[replica.policy] for replica in replicas]


def check_policy(setting: ServingSetting, policy: NamedPolicy | None, tables: ReplayTables) -> None:
    """Raise ValueError, before any run, for a policy that may not run."""
    for named in {id(one): one for one in policies_of(setting, policy)}.values():
        check_served(tables, named, lossless=setting.replay.lossless)


def check_served(tables: ReplayTables, named: NamedPolicy, *, lossless: bool) -> None:
    """Raise ValueError for a policy that may not run on a recording under load."""
    about = about_of(built(tables, named, lossless=lossless))
    if about is not None and about.oracle:
        raise ArgumentError(
            f"`policies` must not see ahead under load, which only a lone replay grants, got {named.name}"
        )


def serving_run(
    setting: ServingSetting,
    policy: NamedPolicy | None,
    workload: Workload,
    tables: ReplayTables,
    *,
    rate: float | None,
    seed: int,
    watched: Watched,
    events: bool = False,
    rounds: SharedRounds | None = None,
) -> tuple[ServingLog, Served]:
    """Serve a workload under a policy, to the end, the horizon or an interrupt; `meta.stopped` says why.

    `workload` is opened at `rate` (None: its own; for the log) and `seed`; `tables` are those of the recording at the
    seed. `policy` is for the replicas that have none of their own, and built again; `watched` handles interrupts; with
    `events` every operation is kept, step by step. `rounds` are as of `sim.serving.serve.serve`.

    Raises:
        BrokenWorkloadError: a row of the workload ended the run.
        ValueError: as `sim.serving.serve.serve`.
        CostRangeError: seconds unknown to a cost, with remedies under load.
        PolicyError: a policy broke the contract.
        KeyboardInterrupt: a second interrupt came before the first was handled.
    """
    policies = policies_of(setting, policy)
    setting, notes = _of_members(setting, policies, tables)
    replicas = setting.cluster.replicas
    recorder = recorder_of(tables, replicas, events=events)
    try:
        served = serve(
            workload,
            tables,
            [_spec(setting, tables, *pair) for pair in zip(replicas, policies, strict=True)],
            dispatch=_dispatch(setting, seed),
            recorder=recorder,
            transfer=setting.cluster.transfer,
            horizon_ps=None if setting.horizon_s is None else to_ps(setting.horizon_s),
            seed=seed,
            strict=setting.replay.strict,
            deadlines=setting.deadlines,
            watcher=watched,
            rounds=rounds,
        )
    except CostRangeError as error:
        raise error.loaded() from None
    except ValueError as error:
        if recorder.stopped_by != BROKEN:
            raise
        told = repeated_id_error(workload.about, error.request_id) if isinstance(error, RepeatedIdError) else error
        about = _about(setting, policies, workload, [*notes, str(told)], rate=rate, seed=seed)
        log = recorder.log(about)
        if not len(log.requests["request_id"]):  # no request came before it
            raise
        raise BrokenWorkloadError(log, told) from error
    notes += shares_of(served.num_emitted, served.num_cycled, served.num_modelled)
    return recorder.log(_about(setting, policies, workload, notes, rate=rate, seed=seed)), served


def _of_members(
    setting: ServingSetting, policies: Sequence[NamedPolicy], tables: ReplayTables
) -> tuple[ServingSetting, list[str]]:
    """The setting in which only members that policies run take memory, and notes if all do."""
    replicas, notes = [], []
    num_models = sum(not member.model_free for member in tables.pool.members)
    for replica, policy in zip(setting.cluster.replicas, policies, strict=True):
        runs = members_run_by(built(tables, policy, lossless=setting.replay.lossless))
        replicas.append(replica.running(runs))
        if runs is None and num_models > 1 and replica.role != Role.prefill:
            notes.append(f"memory is shared among all models, since {policy.name} does not say which it runs")
    return replace(setting, cluster=replace(setting.cluster, replicas=tuple(replicas))), list(dict.fromkeys(notes))


def recorder_of(tables: ReplayTables, replicas: Sequence[PlacedReplica], *, events: bool = False) -> ServingRecorder:
    """A recorder for a run of replicas, each with its limited members' blocks; `events`: see `ServingRecorder`."""
    names = tables.pool.names
    blocks = {
        replica.name: [replica.limits.kv[name].num_blocks if name in replica.limits.kv else None for name in names]
        for replica in replicas
    }
    return ServingRecorder(names, blocks, events=events)


def _spec(setting: ServingSetting, tables: ReplayTables, replica: PlacedReplica, policy: NamedPolicy) -> ReplicaSpec:
    made = built(tables, policy, lossless=setting.replay.lossless)
    return ReplicaSpec(
        policy=made,
        policy_name=policy.name,
        cost=replica.cost,
        limits=replica.limits,
        decide_s=seconds_to_decide(made, replica.cost, setting.replay.decide_s),
        role=replica.role,
    )


def _dispatch(setting: ServingSetting, seed: int) -> Dispatch:
    router, stale_ps = setting.cluster.router, to_ps(setting.cluster.stale_s)

    def dispatch(replicas: Sequence[WatchedReplica]) -> Dispatcher:
        built = router.build(RouterSetting(num_replicas=len(replicas), seed=seed))
        return Dispatcher(built, router.label, replicas, stale_ps)

    return dispatch


def _about(
    setting: ServingSetting,
    policies: list[NamedPolicy],
    workload: Workload,
    said: Sequence[str],
    *,
    rate: float | None,
    seed: int,
) -> ServingAbout:
    told = setting.asked() if rate is None else setting.asked() | {"rate": rate}
    return ServingAbout(
        policy=_by_replica(setting, policies),
        workload=setting.workload if rate is None else f"{setting.workload} at {rate:g}/s",
        cluster=setting.cluster.name,
        seed=seed,
        notes=tuple(dict.fromkeys((*notes_on(setting), *workload.about.notes, *said))),
        setting=told,
    )


def _by_replica(setting: ServingSetting, policies: list[NamedPolicy]) -> str:
    """The one name of all policies, or each with its replicas, of those that use one."""
    pairs = zip(setting.cluster.replicas, policies, strict=True)
    using = [(policy.name, replica.group) for replica, policy in pairs if replica.role != Role.prefill]
    return using[0][0] if len(dict(using)) == 1 else _with_groups(using)


def _with_groups(using: Iterable[tuple[str, str]]) -> str:
    by_policy: dict[str, list[str]] = {}
    for name, group in using:
        by_policy.setdefault(name, []).append(group)
    return "; ".join(f"{name} on {', '.join(dict.fromkeys(groups))}" for name, groups in by_policy.items())


def policies_kept(setting: ServingSetting) -> str:
    """Policies that replicas have of their own, whatever the run's is, each with its replicas; "" if none has."""
    return _with_groups((one.policy, one.group) for one in setting.cluster.replicas if one.policy is not None)


def notes_on(setting: ServingSetting) -> list[str]:
    """Notes on the recording and its seconds."""
    costs = {id(replica.cost): replica.cost for replica in setting.cluster.replicas}.values()
    about = setting.recording.about
    return [
        *kind_of(about.kind, about.name, about.trust),
        *about.remarks,
        *(note for cost in costs for note in cost.notes()),
    ]


def shares_of(num_emitted: int, num_cycled: int, num_modelled: int) -> list[str]:
    """Notes on what the recording lacks for this run; arguments as the attributes of `Served`."""
    found = []
    if num_cycled:
        found.append(
            f"{num_cycled / num_emitted:.1%} of the tokens came after the first pass of a recorded answer, which then "
            "starts again"
        )
    if num_modelled:
        tokens = counted(num_emitted, "output token")
        found.append(f"{num_modelled:,} decisions were modelled rather than replayed, over {tokens}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Simulated(ServingReport):
    """One served run; prints as `paceline metrics` prints its folder."""

    log: ServingLog
    cut: bool = False  # whether an interrupt came after the run, before it was served again at the ends of its cost

    def tables(self) -> Sequence[Grid]:
        found = ranges_table([(names_of(self.rows, row), row) for row in self.rows])
        return [*ServingReport.tables(self), *([] if found is None else [found])]

    def sections(self) -> Sequence[Section]:
        series, known = self.log.series, ServingReport.sections(self)
        if not len(series["at_ps"]):
            return known
        lines = tuple(_over_time(series, name) for name in ("running", "waiting"))
        drawn = Panel(title="Requests", x_label="s", y_label="requests", series=lines)
        return [*known, Section(topic="over_time", panels=(drawn,))]

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped by Ctrl-C or SIGTERM."""
        return self.log.meta.stopped == INTERRUPTED

    def write(self, path: str | Path) -> None:
        """Write the folder of the run, which `metrics` reads; raises ValueError if it exists."""
        write_serving(self.log, Path(path))


def _over_time(series: Columns, name: str) -> Series:
    """A figure of all replicas together over time, from their states."""
    changes = series[name].copy()
    is_next = series["replica"][1:] == series["replica"][:-1]
    changes[1:] -= np.where(is_next, series[name][:-1], 0)
    order = np.argsort(series["at_ps"], kind="stable")
    return over_time(name, series["at_ps"][order] / PS_PER_S, np.cumsum(changes[order]))


@takes(SimulateOptions)
def simulate(
    workload: str | Path,
    policy: PolicyGiven | None = None,
    recording: Recording | str | Path | None = None,
    *,
    cluster: str | Path,
    **options: Any,  # noqa: ANN401 - see `SimulateOptions`
) -> Simulated:
    """Serve a workload under a policy: latencies, throughput, goodput, memory, acceptance.

    Ctrl-C stops the run; the results so far are returned, and written, marked partial. A row of the workload that
    cannot be read or served ends the run too: the results before it are written, and are the error's `run`.

    Args:
        workload: a file of requests, or a generator's text; see `paceline.traces.workloads.open_workload`.
        policy: of the replicas that have none of their own, as `compare` takes it.
        recording: that acceptance is drawn from, request by request; None: the one that comes with the package.
        cluster: a TOML file (docs/cluster.md), or a device of the sheet, as "h100": one replica on it.
        options: see `SimulateOptions`. Those of the workload change it as in `open_workload`; `cost` is of all
            replicas, in place of the cluster's own.

    Raises:
        BrokenWorkloadError: a row of the workload ended the run.
        ValueError: a bad argument, cluster or policy, in one line.
        CostRangeError: seconds unknown to the cost.
        PolicyError: a policy that broke the contract.
    """
    asked = checked(SimulateOptions, options | {"workload": workload, "cluster": cluster})
    setting = serving_setting(recording, workload, cluster, asked)
    named = None if policy is None else named_policy(policy)
    seed = setting.replay.seed
    tables = setting.tables(seed)
    check_policy(setting, named, tables)
    opened = setting.opened(asked.rate, seed)
    setting.check_classes(opened)
    fast_and_slow = setting.ends()[:: ENDS - 1]
    total = opened.about.num_requests
    if total is not None:
        total *= 1 + len(fast_and_slow)
    with held_interrupts() as interrupts, Progress("serving", total, unit="requests") as progress:
        watched = Watched(interrupts=interrupts, on_ended=progress.advance)
        run = partial(serving_run, policy=named, workload=opened, tables=tables, rate=asked.rate, seed=seed)
        try:
            log, _ = run(setting, watched=watched, events=asked.events)
        except BrokenWorkloadError as broken:
            broken.run = _simulated(broken.log, setting, asked.out)
            raise
        if log.meta.stopped:
            log = _with_classes(log, opened)
        if log.meta.stopped == INTERRUPTED:
            return _simulated(log, setting, asked.out)
        ends = [run(end, watched=watched)[0] for end in fast_and_slow if not interrupts.heard()]
        return _simulated(log, setting, asked.out, () if interrupts.heard() else ends, cut=interrupts.heard())


def _with_classes(log: ServingLog, workload: Workload) -> ServingLog:
    """The log with the classes of all requests of the workload, up to one that cannot be read: the run ended before."""
    classes = set[str]()
    with suppress(ValueError):
        classes.update(arrival.slo for arrival in one_by_one(workload))
    about = log.meta.about.model_copy(update={"classes": tuple(sorted(classes - {""}))})
    return replace(log, meta=log.meta.model_copy(update={"about": about}))


def _simulated(
    log: ServingLog,
    setting: ServingSetting,
    out: str | Path | None,
    ends: Sequence[ServingLog] = (),
    *,
    cut: bool = False,
) -> Simulated:
    if out is not None:
        write_serving(log, Path(out))
    first = measured_run(log, "the run" if out is None else str(out), setting.promised, alone=True)
    row = SeedRow(runs=(first,), ends=tuple(measured_run(end, "an end", setting.promised) for end in ends))
    return Simulated(log=log, rows=(row,), promised=setting.promised, cut=cut)
