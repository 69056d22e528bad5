"""Devices: those of the sheet, and those of a user in `[devices.NAME]` of a TOML file."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...base.errors import known_are
from ...base.toml import TomlFileError, checked_toml, read_toml
from ...traces.meta import WIDTHS, Arithmetic
from .roofline import SHEET, Device, device_sheet

# Bytes, and bytes and operations per second: less than any device has is in another unit, as GB or TFLOP/s.
LEAST_FIGURE = 1e6
Figure = Annotated[float, Field(ge=LEAST_FIGURE, le=1e21)]
MOST_LATENCY_S, MOST_LAUNCH_S = 1.0, 1e-2  # in microseconds they would be more
MOST_NAME, MOST_TEXT = 200, 4096  # characters: of names in tables, and of a path or a policy
Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME)]
Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
OWN_DEVICE = "a device of your own: [devices.NAME] of a FILE.toml"  # in messages about unknown names
ENDING = ".toml"


class Table(BaseModel):
    """Base of the tables of a cluster file: unknown keys and values of another kind are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DeviceTable(Table):
    """Figures of a device that the sheet does not have; attributes as of `Device`.

    Attributes:
        like: device of the sheet for figures not given here; without it the first three are needed.
        flops_per_s: dense peak by dtype, and of fp8, fp4 and int8 units.
        bytes_per_s: memory bandwidth.
        memory_bytes: of device memory.
        link_bytes_per_s: to others of its kind, one direction.
        link_latency_s: seconds an all-reduce adds to its bytes.
        layer_launch_s: seconds a layer adds.
    """

    like: Text | None = None
    flops_per_s: dict[str, Figure] | None = None
    bytes_per_s: Figure | None = None
    memory_bytes: Figure | None = None
    link_bytes_per_s: Figure | None = None
    link_latency_s: Annotated[float, Field(ge=0, le=MOST_LATENCY_S)] | None = None
    layer_launch_s: Annotated[float, Field(ge=0, le=MOST_LAUNCH_S)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = [key for key in ("flops_per_s", "bytes_per_s", "memory_bytes") if getattr(self, key) is None]
        if self.like is None and missing:
            raise ValueError(f"must have {missing[0]}, or be like a device of the sheet")
        known = (*WIDTHS, *get_args(Arithmetic))
        unknown = [dtype for dtype in self.flops_per_s or {} if dtype not in known]
        if unknown:
            raise ValueError(f"flops_per_s must be of {', '.join(known)}, got {unknown[0]!r}")
        return self

    @property
    def figures(self) -> dict[str, Any]:
        """Given figures."""
        return self.model_dump(exclude={"like"}, exclude_none=True)


def known_devices(
    path: Path | str, tables: Mapping[str, DeviceTable], refused: type[TomlFileError] = TomlFileError
) -> dict[str, Device]:
    """Every device by name: those of the sheet, and those of `[devices]` in the file at `path`.

    Raises:
        TomlFileError: as `refused`; a name of the sheet, or one like a device that the sheet does not have.
    """
    sheet = device_sheet()
    found = dict(sheet)
    for name, table in tables.items():
        field = f"devices.{name}"
        if name in sheet:
            raise refused(path, field, "must have a name of its own; the sheet has this one", name)
        if table.like is None:
            found[name] = Device(name=name, source=str(path), **table.figures)
        elif table.like in sheet:
            found[name] = replace(sheet[table.like], name=name, source=str(path), **table.figures)
        else:
            rule = f"must be a device of the sheet ({known_are(table.like, sorted(sheet), where=SHEET)})"
            raise refused(path, f"{field}.like", rule, table.like)
    return found


class ReplicaOfCost(Table):
    """What says how fast a replica's device is; the other keys of its table are not read here."""

    device: Text | None = None
    role: Text | None = None
    tensor_parallel: int = 1
    engine: Text | None = None
    name: Any = None
    count: Any = None
    policy: Any = None
    cost: Any = None
    max_num_seqs: Any = None
    token_budget: Any = None
    max_model_len: Any = None
    block_tokens: Any = None
    kv_blocks: Any = None
    memory_share: Any = None
    activation_reserve_bytes: Any = None
    prefix_cache: Any = None
    drop_units: Any = None
    preemption: Any = None
    shared_prefix: Any = None
    admission: Any = None
    offload: Any = None
    members: Any = None


class NamedDevice(NamedTuple):
    """A device, and the one of the sheet that it is or is like, whose engines serve it; its own name if none."""

    device: Device
    like: str
    replicas: tuple[ReplicaOfCost, ...] = ()  # of the file that decode on it


class DevicesContent(Table):
    """What a cost reads of a file: its devices. With replicas it is a cluster's, whose other keys are not read here."""

    devices: dict[Name, DeviceTable]
    replicas: Annotated[tuple[ReplicaOfCost, ...] | None, Field(strict=False)] = None
    router: Any = None
    transfer: Any = None
    horizon_s: Any = None
    name: Any = None


def device_named(text: str) -> NamedDevice | None:
    """The device of the sheet called `text`, or the only one of a TOML file; None: `text` names neither.

    Raises:
        TomlFileError: a file that cannot be read, or that breaks a rule.
    """
    sheet = device_sheet()
    if text in sheet:
        return NamedDevice(sheet[text], text)
    if not text.endswith(ENDING):
        return None
    path = Path(text)
    content = checked_toml(path, read_toml(path, "devices file", TomlFileError), DevicesContent, TomlFileError)
    for key in sorted(content.model_fields_set - {"devices"}) if content.replicas is None else ():
        raise TomlFileError(path, key, "must be left out of a file without replicas", getattr(content, key))
    tables = content.devices
    if len(tables) != 1:
        raise TomlFileError(path, "devices", "must hold one device to be a cost", ", ".join(tables))
    ((name, table),) = tables.items()
    decoding = tuple(one for one in content.replicas or () if one.device in (None, name) and one.role != "prefill")
    return NamedDevice(known_devices(path, tables)[name], table.like or name, decoding)
