"""The file of a cluster (TOML), and the memory of its devices for keys and values.

docs/cluster.md says how many blocks fit beside the weights of a replica's members. N devices of a kind hold one replica
together (tensor parallel). Beside a model with windows, all members hold the same number of texts of `TEXT_WINDOWS` of
the largest window: with shorter ones some room of the others stays unused, with longer ones of that model. vLLM gives
all members blocks of one pool.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import floor, lcm
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, field_validator

from ...base.toml import TomlFileError, checked_toml, read_toml
from ...traces.meta import MOST, NAME_PATTERN, WIDTHS, ModelInfo
from ...traces.workloads.arrival import MOST_PS, PS_PER_S
from ..cost.devices import LEAST_FIGURE, MOST_NAME, DeviceTable, Figure, Name, Table, Text
from ..cost.roofline import Device
from .limits import COMMON_ROWS, COMMON_TOKENS, Admission, KvLimits, KvWindow, Preemption
from .replica import Role

# Default bytes for activations, CUDA graphs and the engine itself; docs/cluster.md.
ACTIVATION_RESERVE_BYTES = 2_000_000_000
# Of vLLM v0.30.0, `vllm/config/cache.py`: `gpu_memory_utilization`, `DEFAULT_BLOCK_SIZE`, `enable_prefix_caching`.
MEMORY_SHARE = 0.92
BLOCK_TOKENS = 16
PREFIX_CACHE = True
TEXT_WINDOWS = 8  # see above
MOST_REPLICAS = 10_000
LEAST_STALE_S = 1e-6  # below a picosecond it would be 0 on the clock, and a run would mostly take snapshots

Count = Annotated[int, Field(ge=1, le=MOST)]


class ClusterFileError(TomlFileError):
    """An error in a cluster file, or a mismatch with a recording."""


class MemberTable(Table):
    """Settings of one member in a replica; by default the replica's.

    Attributes:
        device: of the member.
        block_tokens: tokens of a block of its keys and values.
        kv_blocks: of its memory; None: computed.
        prefix_cache: whether full blocks are kept for later requests.
        max_model_len: tokens of prompt and answer together at most; None: as many as memory holds.
    """

    device: Text | None = None
    block_tokens: Count | None = None
    kv_blocks: Count | None = None
    prefix_cache: bool | None = None
    max_model_len: Count | None = None


class SharedPrefixTable(Table):
    """When a shared prefix is read once for all rows; attributes as of `SharedPrefix`.

    Attributes:
        least_tokens: of such a text.
        least_rows: of a forward, or of a group.
        groups: whether texts that only some rows share are also read once.
    """

    least_tokens: Annotated[int, Field(ge=0, le=MOST)] = COMMON_TOKENS
    least_rows: Annotated[int, Field(ge=2, le=MOST)] = COMMON_ROWS
    groups: bool = False


class OffloadTable(Table):
    """Host memory for blocks that prefix caches evict.

    Attributes:
        host_bytes: of each replica, for all members together.
        bytes_per_s: of the link of each device.
    """

    host_bytes: Figure
    bytes_per_s: Figure


class ReplicaTable(Table):
    """Equal replicas.

    Attributes:
        name: unique in the file; None: the device's, with the place in the file where that is not unique.
        count: of them.
        device: of members that name none.
        tensor_parallel: devices of a kind over which each member is split.
        role: their part of requests: all, the prefill, or the rest.
        policy: of these replicas; None: the run's.
        cost: of forwards, as `--cost`; None: the seconds of the devices.
        engine: as `--engine`; for a device of the sheet, or like one.
        max_num_seqs: requests in a batch at most; None: as vLLM for the target's device.
        token_budget: tokens of a step at most; None: as vLLM for the target's device.
        max_model_len: most tokens of prompt and answer together for the target; None: what memory holds.
        block_tokens: tokens of a block of keys and values.
        kv_blocks: of each member; None: computed from memory.
        memory_share: of a device's memory that the engine uses.
        activation_reserve_bytes: of each device, that is neither weights nor keys and values.
        prefix_cache: whether full blocks are kept for later requests.
        drop_units: last blocks of a request's prefix hit that no member uses.
        preemption: which request is preempted where blocks are short, and where it waits then.
        shared_prefix: when the target's forward reads a prefix of all rows once; None: never.
        admission: when a waiting request is admitted.
        offload: host memory for blocks that prefix caches evict; None: none.
        members: settings by name.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=MOST_NAME)] | None = None
    count: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    device: Text | None = None
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    role: Annotated[Role, Field(strict=False)] = Role.both
    policy: Text | None = None
    cost: Text | None = None
    engine: Text | None = None
    max_num_seqs: Count | None = None
    token_budget: Count | None = None
    max_model_len: Count | None = None
    block_tokens: Count = BLOCK_TOKENS
    kv_blocks: Count | None = None
    memory_share: Annotated[float, Field(gt=0, le=1)] = MEMORY_SHARE
    activation_reserve_bytes: Annotated[float, Field(ge=0, le=1e15)] = float(ACTIVATION_RESERVE_BYTES)
    prefix_cache: bool = PREFIX_CACHE
    drop_units: Annotated[int, Field(ge=0, le=MOST)] = 0
    preemption: Annotated[Preemption, Field(strict=False)] = Preemption.latest
    admission: Annotated[Admission, Field(strict=False)] = Admission.first_chunk
    shared_prefix: SharedPrefixTable | None = None
    offload: OffloadTable | None = None
    members: dict[Name, MemberTable] = Field(default_factory=dict)

    @field_validator("activation_reserve_bytes")
    @classmethod
    def _in_bytes(cls, reserve: float) -> float:
        if 0 < reserve < LEAST_FIGURE:
            raise ValueError(f"must be 0 or >= {LEAST_FIGURE:g}")
        return reserve

    def member(self, name: str) -> MemberTable:
        """A member's settings, with the replica's for those not given; `kv_blocks` may remain None."""
        own = self.members.get(name, MemberTable())
        return MemberTable(
            device=own.device or self.device,
            block_tokens=own.block_tokens or self.block_tokens,
            kv_blocks=own.kv_blocks or self.kv_blocks,
            prefix_cache=self.prefix_cache if own.prefix_cache is None else own.prefix_cache,
            max_model_len=own.max_model_len,
        )

    def max_model_len_of(self, name: str, *, target: str) -> int | None:
        """Most tokens for a member; the replica's own number is the target's."""
        own = self.member(name).max_model_len
        return self.max_model_len if own is None and name == target else own


class RouterTable(Table):
    """The router.

    Attributes:
        name: of the router with its options, as in `prefix-affinity,least_share=0.3`.
        stale_s: seconds between two snapshots of the replicas, a microsecond at least; 0: it sees them as they are.
    """

    name: Text = "round-robin"
    stale_s: Annotated[float, Field(ge=0, le=1e6)] = 0.0

    @field_validator("stale_s")
    @classmethod
    def _apart(cls, stale_s: float) -> float:
        if 0 < stale_s < LEAST_STALE_S:
            raise ValueError(f"must be 0 or >= {LEAST_STALE_S}")
        return stale_s


class TransferTable(Table):
    """The link from replicas that prefill to those that decode.

    Attributes:
        bytes_per_s: of the link.
        latency_s: after the last byte of a transfer has left.
        kv_bytes_per_token: keys and values of a token of the target; None: by its shape.
    """

    bytes_per_s: Figure
    latency_s: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    kv_bytes_per_token: Annotated[int, Field(ge=0, le=MOST)] | None = None

    @field_validator("kv_bytes_per_token", mode="before")
    @classmethod
    def _whole(cls, given: object) -> object:
        """Bytes may be written `7e4`, as elsewhere in the file."""
        return int(given) if isinstance(given, float) and given.is_integer() else given


class ClusterContent(Table):
    """The content of a cluster file.

    Attributes:
        name: shown in tables; None: the file's.
        horizon_s: simulated seconds after which a run ends, finished or not; None: it runs to its end.
        devices: by name, those that the sheet does not have.
        router: that picks replicas.
        transfer: from replicas that prefill to those that decode; None: all do both.
        replicas: at least one table of them.
    """

    name: Name | None = None
    horizon_s: Annotated[float, Field(gt=0, le=MOST_PS // PS_PER_S)] | None = None
    devices: dict[Name, DeviceTable] = Field(default_factory=dict)
    router: RouterTable = RouterTable()
    transfer: TransferTable | None = None
    replicas: Annotated[tuple[ReplicaTable, ...], Field(strict=False, min_length=1)]

    def one_cost(self, path: str) -> dict[str, Any] | None:
        """Options of the cost of all replicas that decode; None: they differ, or have a cost of their own.

        `path` is the file's, which is the cost of its only device.
        """
        decoding = [table for table in self.replicas if table.role != Role.prefill]
        kinds = {(table.device, table.tensor_parallel, table.engine) for table in decoding}
        apart = any(table.cost or any(one.device for one in table.members.values()) for table in decoding)
        (device, split, engine), *others = kinds
        if apart or others or device is None or (device in self.devices and len(self.devices) > 1):
            return None
        cost = path if device in self.devices else device
        return {"cost": cost, "tensor_parallel": split, "engine": engine}


def read_cluster_file(path: Path) -> ClusterContent:
    """Read a file; names of a recording's members are not checked here.

    Raises:
        ClusterFileError: the file is missing, is no TOML, or breaks a rule.
    """
    if not path.is_file():
        raise ClusterFileError(path, "cluster file", "must exist", str(path))
    content = checked_toml(path, read_toml(path, "cluster file", ClusterFileError), ClusterContent, ClusterFileError)
    total = sum(table.count for table in content.replicas)
    if total > MOST_REPLICAS:
        raise ClusterFileError(path, "replicas", f"must be {MOST_REPLICAS:,} at most in all", total)
    return content


class MemoryRuleError(ValueError):
    """A setting that does not fit: `key` of the replica, the broken rule, and the value."""

    def __init__(self, key: str, rule: str, value: object) -> None:
        super().__init__(key, rule, value)
        self.key, self.rule, self.value = key, rule, value


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMemory:
    """One member's part of a device."""

    name: str  # of the member
    shape: ModelInfo | None  # None where unknown
    weights_bytes: int  # 0 for one that shares another's weights, and for an unknown shape
    # of keys and values of a token in all layers, with what fills up the last group of them, on all N devices; 0 for
    # an unknown shape
    token_bytes: int
    kv: KvLimits  # its blocks
    given: bool  # whether the file has their number, so that it was not computed

    @property
    def kv_bytes(self) -> int:
        """Of all blocks; 0 if the shape is unknown."""
        return self.kv.num_blocks * self.kv.block_tokens * self.token_bytes // self.kv.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of one device, or of the N of tensor parallel together."""

    device: str  # its name
    num_devices: int  # N, >= 1
    memory_bytes: int  # of all N
    memory_share: float  # that the engine uses, in (0, 1]
    usable_bytes: int  # of all N
    reserve_bytes: int  # of all N
    members: tuple[MemberMemory, ...]  # in level order

    @property
    def weights_bytes(self) -> int:
        """Of every member."""
        return sum(member.weights_bytes for member in self.members)

    @property
    def kv_bytes(self) -> int:
        """Of every member."""
        return sum(member.kv_bytes for member in self.members)

    @property
    def spare_bytes(self) -> int:
        """Usable and not used; below 0 where given blocks need more than the share."""
        return self.usable_bytes - self.weights_bytes - self.reserve_bytes - self.kv_bytes

    def running(self, names: Container[str]) -> "DeviceMemory":
        """The same device with only these members; blocks that were not given are divided again among them.

        A submodel needs the weights of its model, whether or not that one runs.
        """
        kept = [member for member in self.members if member.name in names]
        if len(kept) == len(self.members):
            return self
        weights = {member.name: member.weights_bytes for member in kept}
        for member in self.members:
            parts = [one.name for one in kept if one.shape is not None and one.shape.submodel_of == member.name]
            if member not in kept and parts:
                weights[parts[0]] += member.weights_bytes
        computed = {
            member.name: _Size(member.kv.block_tokens, member.token_bytes, member.kv.window)
            for member in kept
            if not member.given
        }
        given = sum(member.kv_bytes for member in kept if member.given)
        free = self.usable_bytes - sum(weights.values()) - self.reserve_bytes - given
        blocks = _shared_out(computed, free, self.device) if computed else {}
        members = [
            replace(
                member,
                weights_bytes=weights[member.name],
                kv=replace(member.kv, num_blocks=blocks.get(member.name, member.kv.num_blocks)),
            )
            for member in kept
        ]
        return replace(self, members=tuple(members))


class _Size(NamedTuple):
    """Of what a member holds of a text."""

    block_tokens: int
    token_bytes: int  # see `MemberMemory`
    window: KvWindow | None

    @property
    def groups(self) -> int:
        """Blocks of `block_tokens` tokens."""
        return 1 if self.window is None else self.window.whole + self.window.near

    def bytes(self, num_blocks: int) -> int:
        """Of blocks."""
        return num_blocks * self.block_tokens * self.token_bytes // self.groups

    def blocks(self, num_tokens: int) -> int:
        """Of a decoding request, whose text is a multiple of `block_tokens`."""
        units = num_tokens // self.block_tokens
        if self.window is None:
            return units
        near = min(units, (self.window.tokens + self.block_tokens - 2) // self.block_tokens + 1)
        return self.window.whole * units + self.window.near * near


def _size(shape: ModelInfo | None, block_tokens: int, num_devices: int, most_new: int) -> _Size:
    """Groups of layers as in vLLM (`_get_kv_cache_groups_uniform_page_size`), which fills up the last one."""
    token_bytes = 0 if shape is None else shape.kv_bytes_on(num_devices)
    if shape is None or shape.windowed is None:
        return _Size(block_tokens, token_bytes, None)
    near, layers = shape.windowed.layers, shape.layers
    fewer, more = sorted((near, layers - near))
    of_group = more if more < 1.5 * fewer or not fewer else fewer
    whole, near = -(-(layers - near) // of_group), -(-near // of_group)
    window = KvWindow(tokens=shape.windowed.tokens, whole=whole, near=near, most_new=most_new)
    return _Size(block_tokens, (whole + near) * -(-token_bytes * of_group // layers), window)


def device_memory(
    device: Device, table: ReplicaTable, members: Sequence[str], shapes: Mapping[str, ModelInfo], most_new: int = 8192
) -> DeviceMemory:
    """The parts of a replica's members in a device's memory.

    `members` are on this device, in level order, all of them with weights; `shapes` are theirs, where known. A forward
    adds `most_new` tokens to a text at most.

    Raises:
        MemoryRuleError: weights or blocks that do not fit, no room for a block, or a shape that is needed.
    """
    asked = {name: table.member(name) for name in members}
    weights = _weights(members, shapes)
    count = table.tensor_parallel
    memory = count * floor(device.memory_bytes)
    usable = count * floor(Decimal(str(device.memory_bytes)) * Decimal(str(table.memory_share)))
    reserve = count * floor(table.activation_reserve_bytes)
    if (needed := sum(weights.values())) > memory:
        parts = ", ".join(f"{name} {size:,}" for name, size in weights.items() if size)
        rule = f"must hold the weights of its members in {memory:,} bytes of {device.name} ({parts})"
        raise MemoryRuleError("device", rule, f"{needed:,} bytes")
    sizes = {name: _size(shapes.get(name), _block_tokens(asked[name]), count, most_new) for name in members}
    given = sum(size.bytes(asked[name].kv_blocks or 0) for name, size in sizes.items())
    unknown = next((name for name in members if name not in shapes), None)
    blocks = _blocks(asked, sizes, unknown, usable - needed - reserve - given, device.name)
    found = DeviceMemory(
        device=device.name,
        num_devices=count,
        memory_bytes=memory,
        memory_share=table.memory_share,
        usable_bytes=usable,
        reserve_bytes=reserve,
        members=tuple(
            MemberMemory(
                name=name,
                shape=shapes.get(name),
                weights_bytes=weights[name],
                token_bytes=sizes[name].token_bytes,
                kv=_limits(asked[name], blocks[name], table.drop_units, sizes[name].window),
                given=asked[name].kv_blocks is not None,
            )
            for name in members
        ),
    )
    if found.weights_bytes + found.kv_bytes > memory:
        rule = f"must fit {device.name} beside the weights: {memory:,} bytes hold {found.weights_bytes:,} of weights"
        raise MemoryRuleError("kv_blocks", rule, f"{found.kv_bytes:,} bytes of keys and values")
    return found


def _blocks(
    asked: Mapping[str, MemberTable], sizes: Mapping[str, _Size], unknown: str | None, free: int, device: str
) -> dict[str, int]:
    """Number of blocks of each member, as given or from free memory; `unknown` has no shape."""
    given = {name: member.kv_blocks for name, member in asked.items() if member.kv_blocks is not None}
    computed = [name for name in asked if name not in given]
    if not computed:
        return given
    if unknown is not None:
        rule = f"must be given on {device}: the shape of {unknown} is not known (`models` gives it)"
        raise MemoryRuleError("kv_blocks", rule, None)
    return given | _shared_out({name: sizes[name] for name in computed}, free, device)


def _shared_out(sizes: Mapping[str, _Size], free: int, device: str) -> dict[str, int]:
    """Number of blocks of each member, all for the same number of tokens, or of texts beside one with windows."""
    computed = list(sizes)
    together = lcm(*(size.block_tokens for size in sizes.values()))
    token_bytes = sum(size.token_bytes for size in sizes.values())
    if token_bytes == 0:
        rule = f"must be given on {device}: no token takes memory of {', '.join(computed)}"
        raise MemoryRuleError("kv_blocks", rule, None)
    longest = max((size.window.tokens for size in sizes.values() if size.window is not None), default=0)
    text = -(-TEXT_WINDOWS * longest // together) * together or together
    blocks = {name: size.blocks(text) for name, size in sizes.items()}
    text_bytes = sum(size.bytes(blocks[name]) for name, size in sizes.items())
    if longest:
        found = {name: free * number // text_bytes for name, number in blocks.items()}
    else:
        found = {name: free // text_bytes * number for name, number in blocks.items()}
    if any(found[name] < size.groups for name, size in sizes.items()):
        rule = f"must leave room for a block of {', '.join(computed)} on {device}: {together * token_bytes:,} bytes"
        raise MemoryRuleError("memory_share", rule, f"{free:,} bytes free")
    return found


def _weights(members: Sequence[str], shapes: Mapping[str, ModelInfo]) -> dict[str, int]:
    """Bytes of each member's own weights; a submodel's are its model's, if that is here."""
    found = {}
    for name in members:
        shape = shapes.get(name)
        if shape is not None and shape.weights_bytes is None:
            rule = f"must be of weights in {', '.join(WIDTHS)}, or quantised beside one of these"
            raise MemoryRuleError(f"members.{name}", rule, shape.dtype)
        shared = shape is None or shape.submodel_of in members
        found[name] = 0 if shape is None or shared else shape.weights_bytes or 0
    return found


def _limits(member: MemberTable, num_blocks: int, drop_units: int, window: KvWindow | None) -> KvLimits:
    return KvLimits(
        num_blocks=num_blocks,
        block_tokens=_block_tokens(member),
        prefix_cache=bool(member.prefix_cache),
        drop_units=drop_units if member.prefix_cache else 0,
        window=window,
    )


def _block_tokens(member: MemberTable) -> int:
    assert member.block_tokens is not None  # ReplicaTable.member
    return member.block_tokens
