"""The same workload under the same policy on the same cluster: simulated, and with real models in the loop."""

from collections.abc import Mapping
from dataclasses import dataclass

from ....arguments import ArgumentError
from ....decoding.policy import Policy
from ....policies.about import about_of
from ....runs.serving.log import ServingLog
from ....runs.serving.meta import ServingAbout
from ....runtime.pools.loaded_members import loaded_pool
from ....runtime.pools.pool import ModelPool
from ....runtime.timing.clock import Clock
from ....runtime.world import TorchWorld
from ....sim.cost.base import CostModel
from ....sim.recorded_answers import RecordedAnswers
from ....sim.serving.clock import to_ps
from ....sim.serving.cluster.cluster import Cluster, Replica
from ....sim.serving.engine.drawn_requests import DrawnRequests
from ....sim.serving.engine.replica_spec import MakeWorld, ReplicaSpec
from ....sim.serving.roles import Role
from ....sim.serving.routers import Dispatcher, RouterSetting
from ....sim.serving.simulate import Served, serve
from ....sim.simulate import seconds_to_decide
from ....sim.tries.tables import TrieTables
from ....traces.meta import Sampling
from ....traces.tries.recording import TrieRecording
from ....traces.workloads.arrival import Workload
from ...named_policies import NamedPolicy
from ..serving_run import recorder_of
from .attached_workload import AttachedWorkload
from .models_world import ModelsWorld, Stopwatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """A run in one of the worlds.

    Attributes:
        log: of the run.
        tokens: of finished requests, by id.
        served: what it says besides its log.
        left: requests whose models wrote another text than was recorded; none of a simulated run.
    """

    log: ServingLog
    tokens: Mapping[str, list[int]]
    served: Served
    left: frozenset[str] = frozenset()


class ServedWorlds:
    """Both worlds, ready to serve.

    Args:
        models: of the recording.
        recording: of the models, greedy.
        cluster: whose replicas the models stand for, one after another.
        cost: of every replica in the simulator, in place of the cluster's own.
        seed: of the requests that are drawn.

    Raises:
        ArgumentError: a recording that is not greedy.
        ValueError: a cluster that asks for what models at hand do not do.
    """

    def __init__(
        self, models: ModelPool, recording: TrieRecording, cluster: Cluster, cost: CostModel, *, seed: int
    ) -> None:
        _check_cluster(cluster)
        _check_sampling(recording.meta.sampling)
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
        """The arrivals of a workload, as long as what models write."""
        lengths = {
            request.request_id: (len(request.prompt), len(self._trunks[request.request_id]))
            for request in self._recording.requests
        }
        drawn = DrawnRequests(self._recording.requests, seed=self._seed)
        return AttachedWorkload(workload, drawn, lengths, self._recording.meta.name)

    def build(self, policy: NamedPolicy) -> Policy:
        """A policy for the models; raises ArgumentError for one that may write what was not recorded."""
        built = policy.build(loaded_pool(self._models))
        about = about_of(built)
        if about is not None and not about.lossless:
            raise ArgumentError(f"`policies` must be lossless: what others write was not recorded, got {policy.name}")
        return built

    def simulated(self, policy: NamedPolicy, workload: AttachedWorkload) -> ServedRun:
        """Serve from the recording, at the seconds of the cost."""
        count = len(self._cluster.replicas)
        policies = [policy.build(self._tables.pool) for _ in range(count)]
        return self._served(policy.name, policies, workload, None, set())

    def measured(self, policy: NamedPolicy, workload: AttachedWorkload) -> ServedRun:
        """Serve with the models, at the seconds that they take.

        Raises:
            ValueError: a request failed in the models.
            MemoryError: a device has no room for what the blocks of the cluster hold.
        """
        policies = [self.build(policy) for _ in self._cluster.replicas]
        worlds = [TorchWorld(pool=self._models, sampling=self._recording.meta.sampling) for _ in policies]
        left: set[str] = set()
        stopwatch = Stopwatch(_clock(self._models))
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

    def _spec(self, name: str, policy: Policy, replica: Replica, make_world: MakeWorld | None) -> ReplicaSpec:
        return ReplicaSpec(
            policy=policy,
            policy_name=name,
            cost=self._cost,
            limits=replica.limits,
            # With models, what passes between operations counts, and deciding is a part of it.
            decide_s=seconds_to_decide(policy, self._cost, None) if make_world is None else 0.0,
            make_world=make_world,
        )


def _clock(models: ModelPool) -> Clock:
    return Clock(member.model.device for member in models.members if member.model is not None)


def _check_sampling(sampling: Sampling) -> None:
    if sampling.mode != "greedy":
        raise ArgumentError(
            "`recording` must be greedy: a request that is served twice would be sampled by its id, got "
            f"{sampling.mode}"
        )


def _check_cluster(cluster: Cluster) -> None:
    """Raise ValueError, which names the replica, for what models at hand do not do."""
    for replica in cluster.replicas:
        where = f"cluster {cluster.name}, replica {replica.name}"
        if replica.policy is not None:
            raise ValueError(
                f"{where}: policy must be left out, since every replica runs the policies that are validated, got "
                f"{replica.policy!r}"
            )
        if replica.role != Role.both:
            raise ValueError(f"{where}: role must be both, since models at hand hand over nothing, got {replica.role}")
        for member, limits in replica.limits.kv.items():
            if limits.prefix_cache:
                raise ValueError(
                    f"{where}: prefix_cache must be false, since models at hand keep no prefix cache, got true for "
                    f"{member}"
                )
