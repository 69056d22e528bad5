"""What a workload is served under, as it was asked for: recording, cluster, seconds, scaling, what is promised."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from pydantic import with_config

from ...arguments import ArgumentError, check_within
from ...decoding.prefill import Start, start_of
from ...reports.serving.slo.promises import Promises
from ...sim.cost.devices import device_sheet
from ...sim.cost.make import scaled_by_name
from ...sim.replay_tables import ReplayTables, tables_of
from ...sim.serving.cluster.cluster import Cluster, Replica
from ...sim.serving.cluster.make_cluster import open_cluster
from ...sim.serving.engine.served_session import Deadline
from ...traces.recording import Recording
from ...traces.workloads import Workload, WorkloadOptions, with_options
from ...traces.workloads.exact_seconds import MOST_PS, PS_PER_S
from ..comparing.setting import STRICT, ReplayOptions, Setting, SettingOptions, setting_of
from .metrics import Promised, promises, refuse_unknown_classes

# Options of seconds that are said of one cost; a cluster has one for each replica.
OF_ONE_COST = ("tensor_parallel", "extrapolate", "on", "allow_foreign_profile")


@with_config(STRICT)
class ServingOptions(ReplayOptions, total=False):
    """The keywords that `simulate` and `compare_under_load` share: those of any replay, and of the workload."""

    time_scale: float | None
    limit: int | None
    max_prompt_tokens: int | None
    max_output_tokens: int | None
    zero_tokens: str
    tag: str | None
    horizon_s: float | None
    slo: Promised | None


@with_config(STRICT)
class LoadOptions(ServingOptions, total=False):
    """Further keywords of `compare_under_load`."""

    seeds: int
    start: Start | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSetting:
    """What a workload is served under.

    Attributes:
        replay: the recording, and what is asked of any replay.
        cluster: that serves, at the seconds asked for.
        workload: a path, or a generator's text.
        changes: what is done to it, but for rate and seed.
        horizon_s: simulated seconds after which a run is stopped; None: it runs to its end.
        promised: service levels by class of request.

    Raises:
        ArgumentError: a horizon out of range.
    """

    replay: Setting
    cluster: Cluster
    workload: str
    changes: WorkloadOptions
    horizon_s: float | None
    promised: Promises

    def __post_init__(self) -> None:
        if self.horizon_s is not None:
            check_within("`horizon_s`", self.horizon_s, f"(0, {MOST_PS // PS_PER_S}]")

    @property
    def recording(self) -> Recording:
        """That acceptance is drawn from."""
        return self.replay.recording

    @property
    def deadlines(self) -> dict[str, Deadline | None]:
        """When policies are told that tokens are due, by class; "" is for all others.

        None where a class is not promised times both to the first token and for each further one.
        """
        found: dict[str, Deadline | None] = {}
        for name, levels in {"": self.promised.others, **self.promised.classes}.items():
            ttft, tpot = levels.ttft, levels.tpot
            found[name] = None if ttft is None or tpot is None else Deadline(ttft, tpot)
        return found

    def check_classes(self, workload: Workload) -> None:
        """Refuse a promise to a class that no request of a workload has; it is read until all classes were met.

        Raises:
            ArgumentError: such a class, by name.
        """
        missing, known = set(self.promised.classes), {""}
        arrivals = iter(workload) if missing else iter(())
        for arrival in arrivals:
            known.add(arrival.slo)
            missing.discard(arrival.slo)
            if not missing:
                return
        refuse_unknown_classes(self.promised, known)

    def opened(self, rate: float | None, seed: int) -> Workload:
        """The workload at a rate; the same rate and seed give the same requests, whoever serves them."""
        return with_options(self.workload, replace(self.changes, rate=rate, seed=seed), self.recording)

    def tables(self, seed: int) -> ReplayTables:
        """The recording for replay; where acceptance is shifted, each seed has its own."""
        shifts = self.replay.shift_acceptance
        return tables_of(self.recording.shifted(shifts, seed=seed) if shifts else self.recording)

    def asked(self) -> dict[str, Any]:
        """All of it that runs have in common, for their logs; what is as by default is left out."""
        told: dict[str, Any] = {"trace": self.recording.about.name, "router": self.cluster.router.label}
        defaults = Setting(recording=self.recording)
        for name in ReplayOptions.__annotations__:
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
        # A file that was changed between two runs keeps its name: what is in it tells them apart.
        told["replicas"] = {name: _told_of(alike) for name, alike in self.cluster.groups.items()}
        return told


def _told_of(alike: Sequence[Replica]) -> dict[str, Any]:
    """What replicas of a group are, for the log of a run."""
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
        "kv": {name: asdict(kv) for name, kv in first.limits.kv.items()},
    }


def serving_setting(
    recording: Recording | str | Path | None,
    workload: str | Path,
    cluster: str | Path,
    options: ServingOptions | LoadOptions,
) -> ServingSetting:
    """What is asked for.

    Args:
        recording: that acceptance is drawn from, or where it lies; None: the one that comes with the package.
        workload: a path, or a generator's text.
        cluster: a TOML file, or a device of the sheet.
        options: of both.

    Raises:
        ValueError: an option out of its range, or one that does not go with the others; one line.
    """
    of_workload = {field.name for field in fields(WorkloadOptions)} - {"rate", "seed", "horizon_s"}
    of_replay: Any = {name: value for name, value in options.items() if name in SettingOptions.__annotations__}
    replay = setting_of(recording, 1, of_replay)
    if replay.start is not None and start_of(replay.start) != Start.prefill:
        raise ArgumentError(f"`start` must be prefill under a workload: engines read prompts first, got {replay.start}")
    if replay.decide_s is not None:
        check_within("`decide_s`", replay.decide_s, "[0, 1e9]")
    given: Any = {name: value for name, value in options.items() if name in of_workload}
    changes = WorkloadOptions(seed=replay.seed, **given)
    horizon_s = options.get("horizon_s")
    priced = _priced(open_cluster(cluster, replay.recording), replay)
    return ServingSetting(
        replay=replay,
        cluster=priced,
        workload=str(workload),
        changes=changes,
        horizon_s=priced.horizon_s if horizon_s is None else horizon_s,
        promised=promises(options.get("slo") or {}),
    )


def _check_device(cluster: Cluster, cost: object) -> None:
    """Refuse the seconds of one device of the sheet beside the memory of another; raises ArgumentError."""
    sheet = device_sheet()
    if not isinstance(cost, str) or cost not in sheet:
        return
    others = sorted({device for replica in cluster.replicas for device in replica.placement.values()} - {cost})
    if others:
        rule = f"must be left out, or the device of `cluster`, {others[0]}: its memory and its seconds go together"
        raise ArgumentError(f"`cost` {rule}, got {cost}")


def _priced(cluster: Cluster, replay: Setting) -> Cluster:
    """The cluster at the seconds asked for: one cost for all replicas, or each at its own; scaled in both cases."""
    if replay.cost is not None:
        _check_device(cluster, replay.cost)
        cost = replace(replay, models=None).priced()  # a cluster has another use for shapes: its memory
        priced = [replace(replica, cost=cost, cost_name=cost.name) for replica in cluster.replicas]
        return replace(cluster, replicas=tuple(priced))
    defaults = Setting(recording=replay.recording)
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
