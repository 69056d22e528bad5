"""A device of round figures, and models that fit it."""

from paceline.sim.cost.roofline import Device
from paceline.traces import ModelInfo, SyntheticSpec, TrieRecording

META = SyntheticSpec(models=("draft", "target"), target_forward_s=0.02, cost_slope=0.01).meta()
RECORDING = TrieRecording(meta=META, requests=())
# One teraflop, 100 gigabytes a second, two microseconds a layer; a link of 10 gigabytes a second and 3 microseconds.
DEVICE = Device(
    name="round",
    flops_per_s={"float32": 1e12},
    bytes_per_s=1e11,
    memory_bytes=1e9,
    link_bytes_per_s=1e10,
    link_latency_s=3e-6,
    layer_launch_s=2e-6,
    source="none",
)
MODEL = ModelInfo(name="m", parameters=10**6, layers=3, hidden_size=100, kv_bytes_per_token=400, dtype="float32")


def recording_that_says(**changes):
    return TrieRecording(meta=META.model_copy(update=changes), requests=())


def seconds(cost, new, *, model="m", rows=1, held=0):
    return cost.forward_s(model, num_rows=rows, new_tokens=new, context_tokens=held)
