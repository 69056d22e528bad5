"""One run of a policy under a workload: what `simulate` does once, and `compare_under_load` for each row and seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...arguments import ArgumentError
from ...interrupts import Interrupts
from ...policies.about import about_of
from ...runs.serving.arrived_requests import RepeatedIdError
from ...runs.serving.log import ServingLog
from ...runs.serving.meta import ServingAbout
from ...runs.serving.recorder import ServingRecorder
from ...sim.cost.base import CostRangeError
from ...sim.replay_tables import ReplayTables
from ...sim.serving.clock import to_ps
from ...sim.serving.cluster.cluster import Replica
from ...sim.serving.engine.replica_spec import ReplicaSpec
from ...sim.serving.roles import Role
from ...sim.serving.routers import Dispatcher, RouterSetting
from ...sim.serving.served_replica import ServedReplica
from ...sim.serving.simulate import BROKEN, Dispatch, Served, serve
from ...sim.simulate import seconds_to_decide
from ...traces.workloads import Workload
from ...traces.workloads.files import repeated_id_error
from ..comparing.policy_runs import built
from ..named_policies import NamedPolicy, named_policy
from .broken_workload import BrokenWorkloadError
from .setting import ServingSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Tells progress, and hears interrupts; implements `sim.serving.watcher.Watcher`.

    Attributes:
        interrupts: that came.
        on_ended: called for each request that finished or was rejected.
    """

    interrupts: Interrupts
    on_ended: Callable[[], None]

    def ended(self) -> None:
        """See `Watcher`."""
        self.on_ended()

    def interrupted(self) -> bool:
        """See `Watcher`."""
        return self.interrupts.heard()


def policies_of(setting: ServingSetting, policy: NamedPolicy | None) -> list[NamedPolicy]:
    """The policy of each replica: its own, else the run's. One that prefills for others asks none, and has any.

    Raises:
        ArgumentError: a replica has none, or none is left for the run's.
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
    """Refuse, before anything is run, a policy that may not run; raises ValueError."""
    for named in {id(one): one for one in policies_of(setting, policy)}.values():
        about = about_of(built(tables, named, lossless=setting.replay.lossless))
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
) -> tuple[ServingLog, Served]:
    """Serve a workload under a policy, to the end, the horizon or an interrupt; `meta.stopped` says which.

    Args:
        setting: what it is served under.
        policy: of the replicas that have none of their own; built anew.
        workload: opened at the rate and the seed.
        tables: of the recording, at the seed.
        rate: for the log; None: the workload's own.
        seed: of all that is drawn.
        watched: hears interrupts.

    Raises:
        BrokenWorkloadError: a row of the workload ended the run.
        ValueError: as `sim.serving.simulate.serve`.
        CostRangeError: seconds that a cost does not know, with what can be done under load.
        PolicyError: a policy broke the contract.
        KeyboardInterrupt: a second interrupt came before the first was heard.
    """
    policies = policies_of(setting, policy)
    replicas = setting.cluster.replicas
    recorder = recorder_of(tables, replicas)
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
        )
    except CostRangeError as error:
        raise error.loaded() from None
    except ValueError as error:
        if recorder.stopped_by != BROKEN:
            raise
        told = repeated_id_error(workload.about, error.request_id) if isinstance(error, RepeatedIdError) else error
        about = _about(setting, policies, workload, [str(told)], rate=rate, seed=seed)
        log = recorder.log(about)
        if not len(log.requests["request_id"]):  # nothing came before it
            raise
        raise BrokenWorkloadError(log, told) from error
    shares = shares_of(served.num_emitted, served.num_cycled, served.num_modelled)
    return recorder.log(_about(setting, policies, workload, shares, rate=rate, seed=seed)), served


def recorder_of(tables: ReplayTables, replicas: Sequence[Replica]) -> ServingRecorder:
    """A recorder for a run of replicas, each with the blocks of the members that have limits."""
    names = tables.pool.names
    blocks = {
        replica.name: [replica.limits.kv[name].num_blocks if name in replica.limits.kv else None for name in names]
        for replica in replicas
    }
    return ServingRecorder(names, blocks)


def _spec(setting: ServingSetting, tables: ReplayTables, replica: Replica, policy: NamedPolicy) -> ReplicaSpec:
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

    def dispatch(replicas: Sequence[ServedReplica]) -> Dispatcher:
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
    """The one name of all, or each with its replicas, of those that ask a policy."""
    by_policy: dict[str, list[str]] = {}
    for replica, policy in zip(setting.cluster.replicas, policies, strict=True):
        if replica.role != Role.prefill:
            by_policy.setdefault(policy.name, []).append(replica.group)
    if len(by_policy) == 1:
        return next(iter(by_policy))
    return "; ".join(f"{name} on {', '.join(dict.fromkeys(groups))}" for name, groups in by_policy.items())


def notes_on(setting: ServingSetting) -> list[str]:
    """What is to be said of the recording and its seconds."""
    costs = {id(replica.cost): replica.cost for replica in setting.cluster.replicas}.values()
    return [*setting.recording.about.remarks, *(note for cost in costs for note in cost.notes())]


def shares_of(num_emitted: int, num_cycled: int, num_modelled: int) -> list[str]:
    """What the recording does not hold as it was served; arguments as the attributes of `Served`."""
    found = []
    if num_cycled:
        found.append(
            f"{num_cycled / num_emitted:.1%} of the tokens came after the first pass of a recorded answer, which then "
            "starts anew"
        )
    if num_modelled:
        found.append(f"{num_modelled:,} decisions were modelled rather than replayed")
    return found
