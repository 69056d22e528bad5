"""Published figures of accelerators, for the roofline."""

from dataclasses import dataclass, replace

# What a layer adds that is neither arithmetic nor memory traffic: about ten kernels of 1 microsecond each.
LAYER_LAUNCH_S = 1e-5
# What one all-reduce adds to its bytes over the link: start-up and synchronisation, over NVLink or ICI and over PCIe.
NVLINK_LATENCY_S = 1e-5
PCIE_LATENCY_S = 3e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator.

    Attributes:
        name: as `--cost` takes it.
        flops_per_s: dense peak by dtype, without sparsity; dtypes without a published figure are absent.
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
    link_bytes_per_s: float | None
    source: str
    link_latency_s: float = NVLINK_LATENCY_S
    layer_launch_s: float = LAYER_LAUNCH_S


def device_sheet() -> dict[str, Device]:
    """Every known accelerator by name; "a100" and "h100" stand for the 80 GB and SXM ones."""
    sheet = {device.name: device for device in (*_data_centre(), *_cards(), *_others())}
    for alias, name in (("a100", "a100-80gb"), ("h100", "h100-sxm")):
        sheet[alias] = replace(sheet[name], name=alias)
    return sheet


def device_called(hardware: str) -> str | None:
    """The device of the sheet that a recording's `hardware` names, as drivers report it; None if it names none."""
    reported = {
        "NVIDIA A100-SXM4-40GB": "a100-40gb",
        "NVIDIA A100-SXM4-80GB": "a100-80gb",
        "NVIDIA H100 80GB HBM3": "h100-sxm",
        "NVIDIA H100 PCIe": "h100-pcie",
        "NVIDIA H200": "h200",
        "NVIDIA B200": "b200",
        "NVIDIA L40S": "l40s",
        "NVIDIA GeForce RTX 4090": "rtx4090",
        "NVIDIA GeForce RTX 5090": "rtx5090",
    }
    return reported.get(hardware.partition(";")[0].strip())


def _data_centre() -> tuple[Device, ...]:
    a100 = Device(
        name="a100-80gb",
        flops_per_s=_peaks(float32=19.5e12, half=312e12),
        bytes_per_s=2.039e12,
        memory_bytes=80e9,
        link_bytes_per_s=300e9,
        source="NVIDIA A100 data sheet (2021), SXM: NVLink 600 GB/s both ways",
    )
    h100 = Device(
        name="h100-sxm",
        flops_per_s=_peaks(float32=67e12, half=989e12),
        bytes_per_s=3.35e12,
        memory_bytes=80e9,
        link_bytes_per_s=450e9,
        source="NVIDIA H100 data sheet (2023), SXM: tensor figures halved to dense, NVLink 900 GB/s both ways",
    )
    return (
        replace(a100, name="a100-40gb", bytes_per_s=1.555e12, memory_bytes=40e9),
        a100,
        h100,
        Device(
            name="h100-pcie",
            flops_per_s=_peaks(float32=51e12, half=756e12),
            bytes_per_s=2.0e12,
            memory_bytes=80e9,
            link_bytes_per_s=300e9,
            source="NVIDIA H100 data sheet (2022), PCIe: tensor figures halved to dense, NVLink 600 GB/s both ways",
        ),
        replace(
            h100,
            name="h200",
            bytes_per_s=4.8e12,
            memory_bytes=141e9,
            source="NVIDIA H200 data sheet (2024), SXM: tensor figures halved to dense, NVLink 900 GB/s both ways",
        ),
        Device(
            name="b200",
            flops_per_s=_peaks(float32=75e12, half=2.25e15),
            bytes_per_s=8e12,
            memory_bytes=180e9,
            link_bytes_per_s=900e9,
            source="NVIDIA HGX B200 data sheet (2025), an eighth of the board: tensor figures halved to dense, "
            "NVLink 1.8 TB/s both ways",
        ),
    )


def _cards() -> tuple[Device, ...]:
    """Cards that reach one another over PCIe only; half precision with float32 accumulation."""
    return (
        Device(
            name="l40s",
            flops_per_s=_peaks(float32=91.6e12, half=362.05e12),
            bytes_per_s=864e9,
            memory_bytes=48e9,
            link_bytes_per_s=32e9,
            link_latency_s=PCIE_LATENCY_S,
            source="NVIDIA L40S data sheet (2023), dense: PCIe 4.0 x16, 64 GB/s both ways",
        ),
        Device(
            name="rtx4090",
            flops_per_s=_peaks(float32=82.6e12, half=165.2e12),
            bytes_per_s=1.008e12,
            memory_bytes=24e9,
            link_bytes_per_s=32e9,
            link_latency_s=PCIE_LATENCY_S,
            source="NVIDIA Ada GPU architecture whitepaper (2022), dense: PCIe 4.0 x16",
        ),
        Device(
            name="rtx5090",
            flops_per_s=_peaks(float32=104.8e12, half=209.5e12),
            bytes_per_s=1.792e12,
            memory_bytes=32e9,
            link_bytes_per_s=64e9,
            link_latency_s=PCIE_LATENCY_S,
            source="NVIDIA RTX Blackwell GPU architecture whitepaper (2025), dense: PCIe 5.0 x16",
        ),
    )


def _others() -> tuple[Device, ...]:
    return (
        Device(
            name="tpu-v5p",
            flops_per_s={"bfloat16": 459e12},
            bytes_per_s=2.765e12,
            memory_bytes=95 * 2**30,
            link_bytes_per_s=600e9,
            source="Google Cloud TPU v5p documentation (2024), a chip: interconnect 1,200 GB/s both ways",
        ),
        Device(
            name="cpu-roofline",
            flops_per_s={"float32": 160e9},
            bytes_per_s=12e9,
            memory_bytes=64e9,
            link_bytes_per_s=None,
            source="an assumption, no data sheet: one server core, two 512-bit multiply-adds a cycle at 2.5 GHz, "
            "and its share of eight DDR5 channels among two dozen cores",
        ),
    )


def _peaks(*, float32: float, half: float) -> dict[str, float]:
    """Figures of a device that runs both half precisions at one rate."""
    return {"float32": float32, "bfloat16": half, "float16": half}
