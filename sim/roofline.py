"""Seconds of a forward from a model's shape and a device's published figures."""

from ..traces.meta import ModelInfo
from .cost import LOOKUP_S
from .devices import Device

BYTES_OF = {"float32": 4, "bfloat16": 2, "float16": 2}


class RooflineCost:
    """The larger of arithmetic and memory time, and a launch cost per layer (Williams et al. 2009, the roofline).

    Arithmetic: 2 x parameters x new tokens, and 4 x layers x hidden x new tokens x context of a row for attention.
    Memory: every weight once, and the keys and values of all tokens held. Peak figures: a lower bound on seconds.

    Args:
        device: the accelerator.
        models: shapes of the recorded models.

    Raises:
        ValueError: a dtype the device sheet has no figure for.
    """

    def __init__(self, device: Device, models: tuple[ModelInfo, ...]) -> None:
        self.name = device.name
        self.lookup_s = LOOKUP_S
        self._device = device
        self._models = {model.name: model for model in models}
        for model in models:
            if model.dtype not in device.flops_per_s:
                raise ValueError(f"cost {device.name}: no peak figure for dtype {model.dtype!r} of {model.name}")

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`. Raises ValueError for an unknown model."""
        shape = self._models.get(model)
        if shape is None:
            raise ValueError(f"cost {self.name}: no shape for model {model!r}; the trace has {', '.join(self._models)}")
        device = self._device
        row_context = (context_tokens + new_tokens) / num_rows
        flops = 2.0 * shape.parameters * new_tokens + 4.0 * shape.layers * shape.hidden_size * new_tokens * row_context
        moved = shape.parameters * BYTES_OF[shape.dtype] + shape.kv_bytes_per_token * (context_tokens + new_tokens)
        busy = max(flops / device.flops_per_s[shape.dtype], moved / device.bytes_per_s)
        return busy + shape.layers * device.layer_launch_s
