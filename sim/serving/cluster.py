"""Replicas with limits and costs, and a router, from a cluster file, or the name of a device, and a recording."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import NoReturn

from ...base.by_name import Spec
from ...base.errors import ArgumentError, check_within, innermost, known_are
from ...policies.about import members_run_by
from ...policies.by_name import PolicySpec
from ...traces.recording import Recording
from ...traces.workloads.arrival import PS_PER_S
from ..cost.base import CostModel, DraftTerms
from ..cost.by_name import lower_bound, make_cost, roofline_of
from ..cost.devices import ENDING, OWN_DEVICE, known_devices
from ..cost.engines import EngineTerms, engine_terms
from ..cost.kernel_tables import KERNELS
from ..cost.kernels import KernelCost
from ..cost.roofline import SHEET, Device, device_sheet
from ..cost.what_if import Price, PricedAsCost
from ..recorded import recorded_pool
from .cluster_file import (
    ClusterContent,
    ClusterFileError,
    DeviceMemory,
    MemoryRuleError,
    ReplicaTable,
    device_memory,
    read_cluster_file,
)
from .limits import EngineLimits, Offload, OffloadedMember, SharedPrefix
from .replica import Role, Transfer
from .routers import ROUTERS, RouterClass, RouterSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedReplica:
    """One replica."""

    name: str  # unique in the cluster
    group: str  # name of its table in the file; replicas of a group are equal and share their cost model
    policy: str | None  # of this replica, as text; None: the run's
    cost: CostModel  # of its members' forwards
    cost_name: str  # in tables
    limits: EngineLimits  # of its engine
    placement: Mapping[str, str]  # device of each member that has weights, by name
    tensor_parallel: int  # devices of a kind over which each member is split
    memory: tuple[DeviceMemory, ...]  # of each device
    role: Role = Role.both  # its part of requests

    def running(self, names: Container[str] | None) -> "PlacedReplica":
        """The same replica where only these members, the target included, take memory and have limits; None: all.

        One that prefills for others has no policy, and is unchanged.
        """
        if names is None or self.role == Role.prefill:
            return self
        memory = tuple(device for own in self.memory if (device := own.running(names)).members)
        offload = self.limits.offload
        if offload is not None:
            offloaded = {name: part for name, part in offload.members.items() if name in names}
            offload = replace(offload, members=offloaded) if offloaded else None
        kv = {member.name: member.kv for device in memory for member in device.members}
        most = {name: most for name, most in self.limits.max_model_len.items() if name in names}
        return replace(self, memory=memory, limits=replace(self.limits, kv=kv, offload=offload, max_model_len=most))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Replicas and their router."""

    name: str  # shown in tables
    replicas: tuple[PlacedReplica, ...]  # in the order of the file; a replica's number is its index
    router: Spec[RouterClass]  # that picks replicas
    stale_s: float  # seconds between two snapshots of the replicas, >= 0; 0: the router sees them as they are
    horizon_s: float | None  # simulated seconds after which a run ends; None: it runs to its end
    transfer: Transfer | None = None  # from replicas that prefill to those that decode; None: all do both

    @property
    def groups(self) -> dict[str, tuple[PlacedReplica, ...]]:
        """Equal replicas, by the name of their table."""
        found: dict[str, list[PlacedReplica]] = {}
        for replica in self.replicas:
            found.setdefault(replica.group, []).append(replica)
        return {name: tuple(alike) for name, alike in found.items()}


# vLLM v0.30.0, `EngineArgs.get_batch_defaults` (`vllm/engine/arg_utils.py`), of its API server.
LARGE_MEMORY_BYTES = 70 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """vLLM's defaults for its API server on a device."""

    max_num_seqs: int  # requests in a batch
    token_budget: int  # tokens of a step (`max_num_batched_tokens`)


def batch_limits(device: Device, like: str) -> BatchLimits:
    """By memory, except for an A100, as in vLLM: a large budget lowers its throughput.

    `like` is the device of the sheet that the target's device is, or is like; its own name if none.
    """
    if device.memory_bytes >= LARGE_MEMORY_BYTES and "a100" not in like.lower():
        return BatchLimits(max_num_seqs=1024, token_budget=8192)
    return BatchLimits(max_num_seqs=256, token_budget=2048)


def offload_of(table: ReplicaTable, memory: Sequence[DeviceMemory]) -> Offload | None:
    """Offloading of a replica's table, by the memory of its devices; None if it has none.

    A block is loaded over the link of its member's device; where members are split, each device loads its part.

    Raises:
        MemoryRuleError: a replica that decodes for others, no prefix cache, or an unknown shape.
    """
    asked = table.offload
    if asked is None:
        return None
    if table.role == Role.decode:
        raise MemoryRuleError(
            "offload", "must be left out on replicas of role decode: what they lack is sent", "a table"
        )
    members = {}
    for device in memory:
        for member in device.members:
            if not member.kv.prefix_cache:
                continue
            if member.shape is None:
                rule = f"must be left out: the shape of {member.name} is not known (`models` gives it)"
                raise MemoryRuleError("offload", rule, "a table")
            size = member.kv.block_tokens * member.token_bytes
            if size:
                block_ps = round(size * PS_PER_S / (device.num_devices * Fraction(asked.bytes_per_s)))
                members[member.name] = OffloadedMember(block_bytes=size, block_ps=block_ps, device=device.device)
    if not members:
        raise MemoryRuleError("offload", "must be left out without a prefix cache", "a table")
    return Offload(host_bytes=floor(asked.host_bytes), members=members)


def transfer_of(content: ClusterContent, path: Path | str, recording: Recording) -> Transfer | None:
    """The link of a file's content, for keys and values of the recording's target; None where all replicas do both.

    Raises:
        ClusterFileError: roles that do not fit together, an unused or missing link, an unknown shape.
    """
    rows = {role: [row for row, table in enumerate(content.replicas) if table.role == role] for role in Role}
    for one, other in ((Role.prefill, Role.decode), (Role.decode, Role.prefill)):
        if rows[one] and not rows[other]:
            rule = f"must be both where no replicas are of role {other}"
            raise ClusterFileError(path, f"replicas[{rows[one][0]}].role", rule, str(one))
    asked = content.transfer
    if asked is None:
        if rows[Role.prefill]:
            raise ClusterFileError(path, "transfer", "must be given where replicas prefill for others", None)
        return None
    if not rows[Role.prefill]:
        raise ClusterFileError(path, "transfer", "must be left out where no replicas prefill for others", "a link")
    known = recording.known_shapes().get(recording.about.target)
    shape = None if known is None else known.shape
    token_bytes = asked.kv_bytes_per_token
    if token_bytes is None:
        if shape is None:
            rule = f"must be given: the shape of {recording.about.target} is not known (`models` gives it)"
            raise ClusterFileError(path, "transfer.kv_bytes_per_token", rule, None)
        token_bytes = shape.kv_bytes_per_token
    return Transfer(bytes_per_s=asked.bytes_per_s, latency_s=asked.latency_s, token_bytes=token_bytes)


class PlacedCost(PricedAsCost):
    """A cost model for each member; prompt lookup, and members that are not placed, use the target's."""

    def __init__(self, costs: Mapping[str, CostModel], target: str) -> None:
        name = ", ".join(f"{member} on {cost.name}" for member, cost in costs.items())
        super().__init__(name, {member: Price(cost=cost, model=member) for member, cost in costs.items()})
        self._target = target
        self.lookup_s = costs[target].lookup_s

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`: notes of every device, each once."""
        return self._notes()

    def draft_terms(self, model: str) -> DraftTerms | None:
        cost, model = self._price(model)
        return cost.draft_terms(model)

    def lookups_s(self, num_rows: int) -> float:
        return self._prices[self._target].cost.lookups_s(num_rows)

    def _price(self, model: str) -> tuple[CostModel, str]:
        return self._prices.get(model, self._prices[self._target]).cost, model


FILE_ENDINGS = (".json", ".profile")


def open_cluster(
    text: str | Path,
    recording: Recording,
    *,
    engine: str | None = None,
    tensor_parallel: int = 1,
    cost: CostModel | None = None,
) -> Cluster:
    """The cluster of a file, or one replica with defaults on devices of the sheet.

    Args:
        text: a path to a TOML file (docs/cluster.md), or a name of the sheet, as "h100".
        recording: whose members the replicas serve.
        engine: on a device of the sheet; a file has its own.
        tensor_parallel: devices of the sheet over which the replica's models are split, 1 to 1024; a file has its own.
        cost: of all replicas, in place of the file's. None: each its own.

    Raises:
        ClusterFileError: a file that breaks a rule, or does not fit the recording; one line.
        ValueError: neither a device nor a file, `tensor_parallel` out of range, or either option with a file.
    """
    name, sheet = str(text), device_sheet()
    if name in sheet:
        engine_terms(engine, name)
        check_within("`tensor_parallel`", tensor_parallel, "[1, 1024]")
        alone = ReplicaTable(device=name, engine=engine, tensor_parallel=tensor_parallel)
        return make_cluster(ClusterContent(name=name, replicas=(alone,)), name, recording, cost=cost)
    for option, given, default in (("engine", engine, None), ("tensor_parallel", tensor_parallel, 1)):
        if given != default:
            rule = f"goes with a device as `cluster`; {name} is to say `{option}` itself"
            raise ArgumentError(f"`{option}` {rule}, got {given}")
    if not (name.endswith(".toml") or Path(name).exists()):
        raise ValueError(f"unknown cluster {name!r}: {known_are(name, sorted(sheet), where=SHEET)}; {OWN_DEVICE}")
    path = Path(name)
    return make_cluster(read_cluster_file(path), path, recording, cost=cost)


def make_cluster(
    content: ClusterContent, path: Path | str, recording: Recording, *, cost: CostModel | None = None
) -> Cluster:
    """The cluster of a file's content; costs that are files are relative to the folder of `path`.

    Other arguments are as of `open_cluster`.

    Raises:
        ClusterFileError: the content does not fit the recording, or weights or blocks do not fit; one line.
    """
    names = _group_names(content, path)
    devices = known_devices(path, content.devices, ClusterFileError)
    likes = {name: table.like for name, table in content.devices.items() if table.like is not None}
    replicas = []
    tables = enumerate(zip(names, content.replicas, strict=True))
    # Of actions at one instant those of the first replicas come first: prefills, whatever the order of the file.
    for row, (name, table) in sorted(tables, key=lambda of_row: of_row[1][1].role == Role.decode):
        alike = _Group(path=path, row=row, table=table, devices=devices, likes=likes, recording=recording, given=cost)
        replicas += alike.replicas(name)
    try:
        router = ROUTERS.parse(content.router.name)
        router.build(RouterSetting(num_replicas=len(replicas)))
    except ValueError as error:
        rule = f"cannot be built: {error}"
        raise ClusterFileError(path, "router.name", rule, content.router.name, told=True) from None
    return Cluster(
        name=content.name or Path(path).stem,
        replicas=tuple(replicas),
        router=router,
        stale_s=content.router.stale_s,
        horizon_s=content.horizon_s,
        transfer=transfer_of(content, path, recording),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """One table of replicas, with all to make them."""

    path: Path | str
    row: int
    table: ReplicaTable
    devices: Mapping[str, Device]
    likes: Mapping[str, str]
    recording: Recording
    given: CostModel | None  # in place of the table's own

    def replicas(self, name: str) -> list[PlacedReplica]:
        """Replicas of the table, `count` of them; raises ClusterFileError."""
        runs = self._runs()
        placement = self._placement()
        device = placement[self.recording.about.target]
        usual = batch_limits(device, self.likes.get(device.name, device.name))
        token_budget = self.table.token_budget or usual.token_budget
        memory = self._memory(placement, token_budget)
        cost = self._cost(placement) if self.given is None else self.given
        limits = EngineLimits(
            max_num_seqs=self.table.max_num_seqs or usual.max_num_seqs,
            token_budget=token_budget,
            kv={member.name: member.kv for device in memory for member in device.members},
            preemption=self.table.preemption,
            admission=self.table.admission,
            max_model_len=self._most_tokens(placement),
            shared_prefix=self._shared_prefix(),
            offload=self._offload(memory),
            copies=tuple(name for name in self.recording.about.models if name not in placement),
        )
        return [
            PlacedReplica(
                name=name if self.table.count == 1 else f"{name}.{number}",
                group=name,
                policy=self.table.policy,
                cost=cost,
                cost_name=cost.name,
                limits=limits,
                placement={member: device.name for member, device in placement.items()},
                tensor_parallel=self.table.tensor_parallel,
                memory=memory,
                role=self.table.role,
            ).running(runs)
            for number in range(self.table.count)
        ]

    def _shared_prefix(self) -> SharedPrefix | None:
        asked, target = self.table.shared_prefix, self.recording.about.target
        if asked is None:
            return None
        if not self.table.member(target).prefix_cache:
            self._refuse("shared_prefix", f"must be left out without a prefix cache of {target}", asked.model_dump())
        return SharedPrefix(least_tokens=asked.least_tokens, least_rows=asked.least_rows, groups=asked.groups)

    def _refuse(self, key: str, rule: str, value: object, *, told: bool = False) -> NoReturn:
        raise ClusterFileError(self.path, f"replicas[{self.row}].{key}", rule, value, told=told) from None

    def _placement(self) -> dict[str, Device]:
        """The device of each member that has weights, in level order."""
        shapes = self.recording.known_shapes()
        members = [name for name in self.recording.about.models if name not in shapes or shapes[name].shape is not None]
        for name in self.table.members:
            if name in self.recording.about.lookups or (name in self.recording.about.models and name not in members):
                self._refuse(
                    f"members.{name}", "must be left out: it copies text, and has neither weights nor KV", name
                )
            if name not in members:
                self._refuse(f"members.{name}", f"must be a member of the recording ({', '.join(members)})", name)
        return {name: self._device_of(name) for name in members}

    def _device_of(self, member: str) -> Device:
        own = self.table.members.get(member)
        asked = self.table.member(member)
        if asked.device is None:
            self._refuse("device", f"must be given, or one for {member}, which is not placed", None)
        if asked.device not in self.devices:
            key = "device" if own is None or own.device is None else f"members.{member}.device"
            known = known_are(asked.device, sorted(self.devices), where=SHEET)
            self._refuse(key, f"must be in [devices] or of the sheet ({known})", asked.device)
        if self.table.drop_units and not asked.prefix_cache and member == self.recording.about.target:
            self._refuse("drop_units", f"must be 0 without a prefix cache of {member}", self.table.drop_units)
        return self.devices[asked.device]

    def _most_tokens(self, placement: Mapping[str, Device]) -> dict[str, int]:
        """Of limited members."""
        target = self.recording.about.target
        found = {name: self.table.max_model_len_of(name, target=target) for name in placement}
        return {name: most for name, most in found.items() if most is not None}

    def _offload(self, memory: Sequence[DeviceMemory]) -> Offload | None:
        try:
            return offload_of(self.table, memory)
        except MemoryRuleError as error:
            self._refuse(error.key, error.rule, error.value)

    def _memory(self, placement: Mapping[str, Device], most_new: int) -> tuple[DeviceMemory, ...]:
        known = self.recording.known_shapes().items()
        shapes = {name: named.shape for name, named in known if named.shape is not None}
        for name, device in placement.items():
            model = shapes[name].submodel_of if name in shapes else None
            if model is not None and placement.get(model, device) != device:
                rule = f"must be that of {model} ({placement[model].name}), whose weights {name} shares"
                self._refuse(f"members.{name}.device", rule, device.name)
        found = []
        for device in {device.name: device for device in placement.values()}.values():
            here = [name for name, place in placement.items() if place == device]
            try:
                found.append(device_memory(device, self.table, here, shapes, most_new))
            except MemoryRuleError as error:
                self._refuse(error.key, error.rule, error.value)
        return tuple(found)

    def _cost(self, placement: Mapping[str, Device]) -> CostModel:
        name = self.table.cost
        try:
            measured = self.recording.about.costs
            if name is None or (name not in measured and (name in self.devices or name.endswith(ENDING))):
                return self._rooflines(name, placement)
            split = self.table.tensor_parallel if name.startswith(KERNELS) else 1  # other costs are not split
            beside = Path(self.path).parent  # of the cluster file, from which paths count
            if name.startswith(KERNELS):
                called = f"{KERNELS}{beside / name.removeprefix(KERNELS)}"
            else:
                called = str(beside / name) if name.endswith(FILE_ENDINGS) else name
            found = make_cost(called, self.recording, engine=self.table.engine, tensor_parallel=split)
        except ClusterFileError:
            raise
        except ValueError as error:
            self._refuse("cost", f"cannot be taken: {error}", name, told=name is None)
        for other in elsewhere(found, [device.name for device in placement.values()]):
            self._refuse("cost", f"must be left out, or of the device that members lie on ({other})", name)
        return found

    def _rooflines(self, name: str | None, placement: Mapping[str, Device]) -> CostModel:
        if name is not None and any(device.name != name for device in placement.values()):
            places = ", ".join(dict.fromkeys(device.name for device in placement.values()))
            self._refuse("cost", f"must be left out or the device that every member lies on ({places})", name)
        members: dict[str, list[str]] = {}
        for member, device in placement.items():
            members.setdefault(device.name, []).append(member)
        about = self.recording.about
        members[placement[about.target].name] += [member for member in about.models if member not in placement]
        parallel = self.table.tensor_parallel
        costs = {
            place: roofline_of(
                self.devices[place],
                place,
                self.recording,
                engine=self._engine(place),
                tensor_parallel=parallel,
                remarks=lower_bound(place, self.table.engine, self._engine(place)),
                members=here,
            )
            for place, here in members.items()
        }
        if len(costs) == 1:
            return next(iter(costs.values()))
        return PlacedCost(
            {member: costs[device.name] for member, device in placement.items()}, self.recording.about.target
        )

    def _engine(self, device: str) -> EngineTerms | None:
        engine, about = self.table.engine, self.recording.about
        try:
            return engine_terms(engine, self.likes.get(device, device), source=about.source, software=about.software)
        except ArgumentError as error:
            self._refuse("engine", f"cannot be taken: {error}", engine, told=True)

    def _runs(self) -> frozenset[str] | None:
        """The members that the table's policy runs; None: any. Raises for a policy that cannot be built."""
        if self.table.policy is None:
            return None
        if self.table.role == Role.prefill:
            self._refuse("policy", "must be left out on replicas of role prefill, which ask none", self.table.policy)
        try:
            return members_run_by(PolicySpec.parse(self.table.policy).build(recorded_pool(self.recording)))
        except ValueError as error:
            self._refuse("policy", f"cannot be built: {error}", self.table.policy, told=True)


def elsewhere(cost: CostModel, devices: Iterable[str]) -> list[str]:
    """Those of `devices` that the sheet has, other than the one whose kernels a cost is of; none for other costs."""
    kernels, sheet = innermost(cost), device_sheet()
    if not isinstance(kernels, KernelCost):
        return []
    own = sheet[kernels.device]
    return [name for name in devices if name in sheet and replace(sheet[name], name=own.name) != own]


def _group_names(content: ClusterContent, path: Path | str) -> list[str]:
    """A name for each table: its own, else its device's, else that and its place in the file."""
    given = [table.name for table in content.replicas]
    seen: set[str] = set()
    for row, name in enumerate(given):
        if name in seen:
            raise ClusterFileError(path, f"replicas[{row}].name", "must be unique", name)
        if name is not None:
            seen.add(name)
    usually = Counter(table.device or "replica" for table in content.replicas)
    names: list[str] = []
    for row, table in enumerate(content.replicas):
        usual = table.device or "replica"
        taken = usual in seen or usually[usual] > 1
        names.append(table.name or (f"{usual}-{row}" if taken else usual))
    return names
