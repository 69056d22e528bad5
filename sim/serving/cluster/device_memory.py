"""How many blocks of keys and values fit beside the weights of a replica's members, and why so many.

    usable = N x floor(memory x memory_share)
    free   = usable - weights of every member on the device - N x activation_reserve_bytes - blocks that are given
    groups = floor(free / (L x sum of the KV bytes of a token over members whose blocks are computed))
    blocks of a member = groups x L / its block_tokens

N devices of a kind hold one replica together (tensor parallel); L is the least common multiple of the members'
`block_tokens`, so that all of them hold the same number of tokens. Members that share weights count them once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import floor, lcm

from ....traces.meta import ModelInfo
from ....traces.quantised import WIDTHS
from ...cost.devices import Device
from ..limits import KvLimits
from .cluster_file import MemberTable, ReplicaTable


class MemoryRuleError(ValueError):
    """What does not fit: `key` of the replica, the rule that it breaks, and the value."""

    def __init__(self, key: str, rule: str, value: object) -> None:
        super().__init__(key, rule, value)
        self.key, self.rule, self.value = key, rule, value


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMemory:
    """One member's part of a device.

    Attributes:
        name: of the member.
        shape: None where nobody knows it.
        weights_bytes: 0 of one that shares another's; 0 if the shape is unknown.
        kv: its blocks.
        given: whether the file says how many, and they were not computed.
    """

    name: str
    shape: ModelInfo | None
    weights_bytes: int
    kv: KvLimits
    given: bool

    @property
    def kv_bytes(self) -> int:
        """Of all blocks; 0 if the shape is unknown."""
        return self.kv.num_tokens * _kv_bytes(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """What lies on one device, or on the N of tensor parallel together.

    Attributes:
        device: its name.
        num_devices: N, >= 1.
        memory_bytes: of all N.
        memory_share: that the engine uses, in (0, 1].
        usable_bytes: of all N.
        reserve_bytes: of all N.
        members: in level order.
    """

    device: str
    num_devices: int
    memory_bytes: int
    memory_share: float
    usable_bytes: int
    reserve_bytes: int
    members: tuple[MemberMemory, ...]

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
        """Usable and not used; below 0 where blocks are given that need more than the share."""
        return self.usable_bytes - self.weights_bytes - self.reserve_bytes - self.kv_bytes


def device_memory(
    device: Device, table: ReplicaTable, members: Sequence[str], shapes: Mapping[str, ModelInfo]
) -> DeviceMemory:
    """What members of a replica have of a device's memory.

    Args:
        device: that they lie on.
        table: of the replica.
        members: on this device, in level order, all of them with weights.
        shapes: of members, as far as they are known.

    Raises:
        MemoryRuleError: weights or blocks that do not fit, no room for a block, or a shape that is needed.
    """
    asked = {name: table.member(name) for name in members}
    weights = _weights(members, shapes)
    count = table.tensor_parallel
    memory = count * floor(device.memory_bytes)
    usable = count * floor(Decimal(str(device.memory_bytes)) * Decimal(str(table.memory_share)))
    reserve = count * floor(table.activation_reserve_bytes)
    _check_weights(device.name, weights, memory)
    given = sum(_given_bytes(asked[name], shapes.get(name)) for name in members)
    blocks = _blocks(asked, shapes, usable - sum(weights.values()) - reserve - given, device.name)
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
                kv=_limits(asked[name], blocks[name], table.drop_units),
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
    asked: Mapping[str, MemberTable], shapes: Mapping[str, ModelInfo], free: int, device: str
) -> dict[str, int]:
    """Number of blocks of each member, as given or of what is free."""
    given = {name: member.kv_blocks for name, member in asked.items() if member.kv_blocks is not None}
    computed = [name for name in asked if name not in given]
    if not computed:
        return given
    unknown = [name for name in asked if name not in shapes]
    if unknown:
        rule = f"must be given on {device}: the shape of {unknown[0]} is not known (`models` gives it)"
        raise MemoryRuleError("kv_blocks", rule, None)
    together = lcm(*(_block_tokens(asked[name]) for name in computed))
    token_bytes = sum(_kv_bytes(shapes[name]) for name in computed)
    if token_bytes == 0:
        rule = f"must be given on {device}: no token takes memory of {', '.join(computed)}"
        raise MemoryRuleError("kv_blocks", rule, None)
    groups = free // (together * token_bytes)
    if groups < 1:
        rule = f"must leave room for a block of {', '.join(computed)} on {device}: {together * token_bytes:,} bytes"
        raise MemoryRuleError("memory_share", rule, f"{free:,} bytes free")
    return given | {name: groups * together // _block_tokens(asked[name]) for name in computed}


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


def _check_weights(device: str, weights: Mapping[str, int], memory: int) -> None:
    needed = sum(weights.values())
    if needed > memory:
        parts = ", ".join(f"{name} {size:,}" for name, size in weights.items() if size)
        rule = f"must hold the weights of its members in {memory:,} bytes of {device} ({parts})"
        raise MemoryRuleError("device", rule, f"{needed:,} bytes")


def _given_bytes(member: MemberTable, shape: ModelInfo | None) -> int:
    return 0 if member.kv_blocks is None else member.kv_blocks * _block_tokens(member) * _kv_bytes(shape)


def _limits(member: MemberTable, num_blocks: int, drop_units: int) -> KvLimits:
    return KvLimits(
        num_blocks=num_blocks,
        block_tokens=_block_tokens(member),
        prefix_cache=bool(member.prefix_cache),
        drop_units=drop_units if member.prefix_cache else 0,
    )


def _block_tokens(member: MemberTable) -> int:
    assert member.block_tokens is not None  # ReplicaTable.member
    return member.block_tokens


def _kv_bytes(shape: ModelInfo | None) -> int:
    """Of one token."""
    return 0 if shape is None else shape.kv_bytes_per_token
