"""What a cluster is: its replicas, their limits, and where their memory goes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...counted import counted
from ...reports.tables.grid import Grid, table
from ...reports.tables.printed import Printed
from ...sim.serving.cluster.cluster import Cluster, Replica
from ...sim.serving.cluster.device_memory import DeviceMemory, MemberMemory
from ...sim.serving.cluster.make_cluster import open_cluster
from ...sim.serving.limits import Admission, Preemption
from ...traces.recording import Recording
from ..open_recording import open_recording

REMARKS = (
    "usable: memory x share; free for keys and values: usable less weights and reserve",
    "blocks hold the same number of tokens for every member of a device, unless the file gives them",
)


@dataclass(frozen=True, slots=True, repr=False)
class ClusterShown(Printed):
    """A cluster as tables: a line for each group of replicas, then the memory of one replica of each.

    Attributes:
        cluster: that is shown.
    """

    cluster: Cluster

    def tables(self) -> Sequence[Grid]:
        """Replicas, then memory."""
        cluster = self.cluster
        groups = table(
            (_group_cells(name, replicas) for name, replicas in cluster.groups.items()),
            texts=("policy", "cost"),
            title=f"Cluster {cluster.name}: {counted(len(cluster.replicas), 'replica')}",
        )
        return (groups, *(_memory_table(name, replicas[0]) for name, replicas in cluster.groups.items()))

    def lines(self) -> Sequence[str]:
        """Who routes, and when a run ends."""
        cluster = self.cluster
        signals = f"signals every {cluster.stale_s:g} s" if cluster.stale_s else "signals never stale"
        horizon = "no horizon" if cluster.horizon_s is None else f"runs end at {cluster.horizon_s:g} s"
        return (f"router {cluster.router.label}, {signals}; {horizon}", *_unusual(cluster))

    def to_json(self) -> dict[str, Any]:
        """All of it, by group."""
        cluster = self.cluster
        return {
            "name": cluster.name,
            "router": cluster.router.label,
            "stale_s": cluster.stale_s,
            "horizon_s": cluster.horizon_s,
            "transfer": None if cluster.transfer is None else asdict(cluster.transfer),
            "replicas": [_group_json(name, replicas) for name, replicas in cluster.groups.items()],
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each group and member."""
        return [
            {"replicas": name, "count": len(replicas), "device": device.device} | _member_json(member)
            for name, replicas in self.cluster.groups.items()
            for device in replicas[0].memory
            for member in device.members
        ]


def cluster(
    asked: str | Path, recording: Recording | str | Path | None = None, *, models: Sequence[str] | None = None
) -> ClusterShown:
    """What a cluster file, or one replica on a device of the sheet, comes to for the members of a recording.

    Args:
        asked: a TOML file (docs/cluster.md), or a device of the sheet, as "h100".
        recording: whose members are served; None: the shipped one.
        models: shapes of members, as `paceline compare --models` takes them.

    Raises:
        ValueError: a file that breaks a rule or does not go with the recording; one line.
    """
    opened = open_recording(recording) if recording is None or isinstance(recording, str | Path) else recording
    return ClusterShown(open_cluster(asked, opened.with_shapes(models) if models else opened))


def _unusual(cluster: Cluster) -> list[str]:
    """What few clusters say of themselves, a line each."""
    found = []
    for name, replicas in cluster.groups.items():
        limits = replicas[0].limits
        if limits.preemption != Preemption.latest:
            found.append(f"{name}: where blocks are short, preemption {limits.preemption}")
        if limits.admission != Admission.first_chunk:
            found.append(f"{name}: requests enter by {limits.admission}")
        if limits.max_model_len:
            parts = ", ".join(f"{member} {most:,}" for member, most in limits.max_model_len.items())
            found.append(f"{name}: max_model_len of {parts}")
        if limits.offload is not None:
            host, members = limits.offload.host_bytes, limits.offload.members
            parts = ", ".join(f"{member} {own.block_ps / 1e6:,g} us" for member, own in members.items())
            found.append(f"{name}: evicted blocks go to {host / 1e9:,g} GB of host memory; one back: {parts}")
    if cluster.transfer is not None:
        roles = [f"{name} {replicas[0].role}" for name, replicas in cluster.groups.items()]
        link = cluster.transfer
        found.append(
            f"roles: {', '.join(roles)}; between them {link.bytes_per_s / 1e9:g} GB/s and {link.latency_s:g} s, "
            f"{link.token_bytes:,} bytes a token"
        )
    return found


def _group_cells(name: str, replicas: Sequence[Replica]) -> Mapping[str, str]:
    one = replicas[0]
    return {
        "replicas": name,
        "count": f"{len(replicas):,}",
        "policy": one.policy or "the run's",
        "cost": one.cost_name,
        "tensor parallel": str(one.tensor_parallel),
        "max_num_seqs": f"{one.limits.max_num_seqs:,}",
        "token_budget": f"{one.limits.token_budget:,}",
    }


def _memory_table(name: str, replica: Replica) -> Grid:
    rows: list[dict[str, str]] = []
    lines = []
    for device in replica.memory:
        rows += _device_rows(device)
        lines.append(len(rows) - 1)
    return table(
        rows,
        texts=("device", "prefix cache"),
        title=f"Memory of replica: {name}",
        remarks=(*REMARKS, *_unknown(replica)),
        lines=lines,
    )


def _device_rows(device: DeviceMemory) -> list[dict[str, str]]:
    many = f" x{device.num_devices}" if device.num_devices > 1 else ""
    where = {"device": f"{device.device}{many}"}
    usable = {"what": f"usable, {device.memory_share:g} of {device.memory_bytes / 1e9:,.2f} GB"}
    rows = [usable | where | {"GB": _gigabytes(device.usable_bytes)}]
    rows += [
        {"what": f"weights of {member.name}"} | where | {"GB": _gigabytes(-member.weights_bytes)}
        for member in device.members
        if member.weights_bytes
    ]
    rows.append({"what": "activation reserve"} | where | {"GB": _gigabytes(-device.reserve_bytes)})
    rows += [_member_cells(member) | where for member in device.members]
    rows.append({"what": "left over"} | where | {"GB": _gigabytes(device.spare_bytes)})
    return rows


def _member_cells(member: MemberMemory) -> dict[str, str]:
    kv = member.kv
    token_bytes = "" if member.shape is None else f"{member.shape.kv_bytes_per_token:,}"
    kept = f"yes, drops {counted(kv.drop_units, 'block')}" if kv.drop_units else "yes"
    return {
        "what": f"KV of {member.name}{', given' if member.given else ''}",
        "GB": _gigabytes(-member.kv_bytes),
        "bytes a token": token_bytes,
        "tokens a block": f"{kv.block_tokens:,}",
        "blocks": f"{kv.num_blocks:,}",
        "tokens": f"{kv.num_tokens:,}",
        "prefix cache": kept if kv.prefix_cache else "no",
    }


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.3f}"


def _unknown(replica: Replica) -> list[str]:
    names = [member.name for device in replica.memory for member in device.members if member.shape is None]
    return [f"shapes not known, counted as no bytes: {', '.join(names)}"] if names else []


def _group_json(name: str, replicas: Sequence[Replica]) -> dict[str, Any]:
    one = replicas[0]
    return {
        "name": name,
        "count": len(replicas),
        "role": str(one.role),
        "policy": one.policy,
        "cost": one.cost_name,
        "tensor_parallel": one.tensor_parallel,
        "max_num_seqs": one.limits.max_num_seqs,
        "token_budget": one.limits.token_budget,
        "preemption": str(one.limits.preemption),
        "admission": str(one.limits.admission),
        "shared_prefix": None if one.limits.shared_prefix is None else asdict(one.limits.shared_prefix),
        "max_model_len": dict(one.limits.max_model_len),
        "offload": None if one.limits.offload is None else asdict(one.limits.offload),
        "memory": [_device_json(device) for device in one.memory],
    }


def _device_json(device: DeviceMemory) -> dict[str, Any]:
    return {
        "device": device.device,
        "num_devices": device.num_devices,
        "memory_bytes": device.memory_bytes,
        "memory_share": device.memory_share,
        "usable_bytes": device.usable_bytes,
        "reserve_bytes": device.reserve_bytes,
        "spare_bytes": device.spare_bytes,
        "members": [_member_json(member) for member in device.members],
    }


def _member_json(member: MemberMemory) -> dict[str, Any]:
    shape = member.shape
    return {
        "member": member.name,
        "weights_bytes": None if shape is None else member.weights_bytes,
        "kv_bytes_per_token": None if shape is None else shape.kv_bytes_per_token,
        "kv_bytes": None if shape is None else member.kv_bytes,
        "given": member.given,
        **asdict(member.kv),
    }
