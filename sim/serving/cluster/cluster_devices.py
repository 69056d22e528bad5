"""The devices that a cluster file may name: those of the sheet, and those whose figures it gives."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ....arguments import known_are
from ...cost.devices import SHEET, Device, device_sheet
from .cluster_file import ClusterFileError, DeviceTable

# vLLM v0.30.0, `EngineArgs.get_batch_defaults` (`vllm/engine/arg_utils.py`), of its API server.
LARGE_MEMORY_BYTES = 70 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What vLLM's API server takes for a device where nobody says otherwise.

    Attributes:
        max_num_seqs: requests in a batch.
        token_budget: tokens of a step (`max_num_batched_tokens`).
    """

    max_num_seqs: int
    token_budget: int


def batch_limits(device: Device, like: str) -> BatchLimits:
    """By memory, but for an A100, as vLLM has it: a large budget costs that one throughput.

    Args:
        device: of the target.
        like: device of the sheet that it is, or is like; its own name if it is like none.
    """
    if device.memory_bytes >= LARGE_MEMORY_BYTES and "a100" not in like.lower():
        return BatchLimits(max_num_seqs=1024, token_budget=8192)
    return BatchLimits(max_num_seqs=256, token_budget=2048)


def known_devices(path: Path | str, tables: Mapping[str, DeviceTable]) -> dict[str, Device]:
    """Every device by name.

    Args:
        path: of the file, for messages.
        tables: of its `[devices]`.

    Raises:
        ClusterFileError: a name of the sheet, or one like a device that the sheet does not have.
    """
    sheet = device_sheet()
    return dict(sheet) | {name: _own(path, name, table, sheet) for name, table in tables.items()}


def _own(path: Path | str, name: str, table: DeviceTable, sheet: Mapping[str, Device]) -> Device:
    field = f"devices.{name}"
    if name in sheet:
        raise ClusterFileError(path, field, "must have a name of its own; the sheet has this one", name)
    if table.like is None:
        return Device(name=name, source=str(path), **table.figures)
    if table.like not in sheet:
        rule = f"must be a device of the sheet ({known_are(table.like, sorted(sheet), where=SHEET)})"
        raise ClusterFileError(path, f"{field}.like", rule, table.like)
    return replace(sheet[table.like], name=name, source=str(path), **table.figures)
