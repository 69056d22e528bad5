"""Published figures of accelerators, for the roofline: `devices.toml`."""

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

# What a layer adds that is neither arithmetic nor memory traffic: about ten kernels of 1 microsecond each.
LAYER_LAUNCH_S = 1e-5
# What one all-reduce adds to its bytes over NVLink or ICI: start-up and synchronisation.
LINK_LATENCY_S = 1e-5

SHEET = "docs/costs.md"  # has all devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator.

    Attributes:
        name: as `cost` takes it.
        flops_per_s: dense peak by dtype, and of "fp8", "fp4" and "int8" units, without sparsity; those without a
            published figure are absent.
        bytes_per_s: memory bandwidth.
        memory_bytes: of device memory.
        link_bytes_per_s: to other devices of its kind, one direction; None where there is no link.
        source: where the figures are printed.
        link_latency_s: seconds an all-reduce adds to its bytes. An assumption, not a published figure.
        layer_launch_s: seconds a layer adds that are neither arithmetic nor memory traffic (kernel launches, small
            kernels). An assumption, not a published figure.
    """

    name: str
    flops_per_s: dict[str, float]
    bytes_per_s: float
    memory_bytes: float
    source: str
    link_bytes_per_s: float | None = None
    link_latency_s: float = LINK_LATENCY_S
    layer_launch_s: float = LAYER_LAUNCH_S


def device_sheet() -> dict[str, Device]:
    """Every known accelerator by name; "a100" and "h100" stand for the 80 GB and SXM ones."""
    return {device.name: device for device, _ in _devices()}


def device_called(hardware: str) -> str | None:
    """The device of the sheet that a recording's `hardware` names, as drivers report it; None if it names none."""
    reported = hardware.partition(";")[0].strip()
    return next((device.name for device, reported_as in _devices() if reported_as == reported != ""), None)


@cache
def _devices() -> tuple[tuple[Device, str], ...]:
    """Every device and what drivers call it, "" if nobody knows."""
    sheet = tomllib.loads(files(__package__).joinpath("devices.toml").read_text(encoding="utf-8"))
    known, aliases = [], []
    for name, figures in sheet.items():
        alias, reported_as = figures.pop("called", ""), figures.pop("reported_as", "")
        device = Device(name=name, **figures)
        known.append((device, reported_as))
        aliases += [(replace(device, name=alias), "")] if alias else []
    return (*known, *aliases)
