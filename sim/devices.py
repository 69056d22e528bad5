"""Published figures of accelerators, for the roofline."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator.

    Attributes:
        name: as `--cost` takes it.
        flops_per_s: dense peak by dtype, without sparsity.
        bytes_per_s: memory bandwidth.
        memory_bytes: of device memory.
        layer_launch_s: seconds a layer adds that are neither arithmetic nor memory traffic (kernel launches, small
            kernels). An assumption, not a published figure: about ten kernels of 1 microsecond each.
        source: where the figures are printed.
    """

    name: str
    flops_per_s: dict[str, float]
    bytes_per_s: float
    memory_bytes: float
    layer_launch_s: float
    source: str


def device_sheet() -> dict[str, Device]:
    """Every known accelerator by name."""
    devices = (
        Device(
            name="a100",
            flops_per_s={"float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12},
            bytes_per_s=2.039e12,
            memory_bytes=80e9,
            layer_launch_s=1e-5,
            source="NVIDIA A100 80GB SXM data sheet (2021)",
        ),
        Device(
            name="h100",
            flops_per_s={"float32": 67e12, "bfloat16": 989e12, "float16": 989e12},
            bytes_per_s=3.35e12,
            memory_bytes=80e9,
            layer_launch_s=1e-5,
            source="NVIDIA H100 SXM data sheet (2023); tensor-core figures halved to dense",
        ),
        Device(
            name="h200",
            flops_per_s={"float32": 67e12, "bfloat16": 989e12, "float16": 989e12},
            bytes_per_s=4.8e12,
            memory_bytes=141e9,
            layer_launch_s=1e-5,
            source="NVIDIA H200 SXM data sheet (2024); tensor-core figures halved to dense",
        ),
        Device(
            name="rtx4090",
            flops_per_s={"float32": 82.6e12, "bfloat16": 165.2e12, "float16": 165.2e12},
            bytes_per_s=1.008e12,
            memory_bytes=24e9,
            layer_launch_s=1e-5,
            source="NVIDIA Ada GPU architecture whitepaper (2022), dense with FP32 accumulation",
        ),
    )
    return {device.name: device for device in devices}
