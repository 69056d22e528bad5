"""A cluster that is ready to run: replicas with their limits and costs, and who routes."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...cost.base import CostModel
from ..limits import EngineLimits
from ..roles import Role, Transfer
from ..routers import RouterSpec
from .device_memory import DeviceMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica.

    Attributes:
        name: unique in the cluster.
        group: name of its table in the file; replicas of a group are alike and share their cost model.
        policy: of this replica, as text; None: the run's.
        cost: what forwards of its members take.
        cost_name: as tables print it.
        limits: of its engine.
        placement: device of each member that has weights, by name.
        tensor_parallel: devices of a kind that each member is split over.
        memory: of each device.
        role: what it does of a request.
    """

    name: str
    group: str
    policy: str | None
    cost: CostModel
    cost_name: str
    limits: EngineLimits
    placement: Mapping[str, str]
    tensor_parallel: int
    memory: tuple[DeviceMemory, ...]
    role: Role = Role.both


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Replicas and what stands before them.

    Attributes:
        name: shown in tables.
        replicas: in the order of the file; a replica's number is its place.
        router: who picks replicas.
        stale_s: seconds between two looks at the replicas, >= 0; 0: the router sees them as they are.
        horizon_s: simulated seconds after which a run ends; None: it runs to its end.
        transfer: between replicas that prefill and those that decode; None: every one does both.
    """

    name: str
    replicas: tuple[Replica, ...]
    router: RouterSpec
    stale_s: float
    horizon_s: float | None
    transfer: Transfer | None = None

    @property
    def groups(self) -> dict[str, tuple[Replica, ...]]:
        """Replicas that are alike, by the name of their table."""
        found: dict[str, list[Replica]] = {}
        for replica in self.replicas:
            found.setdefault(replica.group, []).append(replica)
        return {name: tuple(alike) for name, alike in found.items()}
