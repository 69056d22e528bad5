"""Which members of a replica are offloaded to host memory, and how long their blocks take."""

from collections.abc import Sequence
from fractions import Fraction
from math import floor

from ....traces.workloads.exact_seconds import PS_PER_S
from ..limits import Offload, OffloadedMember
from ..roles import Role
from .cluster_file import ReplicaTable
from .device_memory import DeviceMemory, MemoryRuleError


def offload_of(table: ReplicaTable, memory: Sequence[DeviceMemory]) -> Offload | None:
    """What a table asks for; None if it does not.

    A block comes over the link of its member's device; where members are split, each device carries its part.

    Args:
        table: of the replica.
        memory: of its devices.

    Raises:
        MemoryRuleError: a replica that decodes for others, no prefix cache, or a shape that is not known.
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
            size = member.kv.block_tokens * member.shape.kv_bytes_per_token
            if size:
                block_ps = round(size * PS_PER_S / (device.num_devices * Fraction(asked.bytes_per_s)))
                members[member.name] = OffloadedMember(block_bytes=size, block_ps=block_ps, device=device.device)
    if not members:
        raise MemoryRuleError("offload", "must be left out without a prefix cache", "a table")
    return Offload(host_bytes=floor(asked.host_bytes), members=members)
