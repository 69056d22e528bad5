"""The least a forward can take on a device: the seconds in which its memory hands over what the forward must read.

A step of a large model on a GPU waits for memory and hardly for arithmetic. So its seconds over this floor say how much
is lost to all else: launches, small products, a cache that is read twice.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from ...profiles.profile import Shape
from ..kv.device_memory import total_bytes
from ..pools.loaded_members import LoadedMember
from ..timing.clock import between_s, mark

# Bytes of the tensor that is copied: beyond the caches of any device, and within the memory of any.
_COPIED_BYTES, _MOST_SHARE = 2**30, 0.05
_COPIES = 9


class MemoryFloor(NamedTuple):
    """What bounds the forwards of one member from below.

    Attributes:
        member: its name.
        weight_bytes: of all weights a forward reads.
        kv_bytes_per_token: keys and values of a token.
        bytes_per_s: of the device's memory, as measured by copying.
    """

    member: str
    weight_bytes: int
    kv_bytes_per_token: int
    bytes_per_s: float

    def seconds(self, rows: int, new_tokens: int, context_tokens: int) -> float:
        """Of a forward that reads its weights once, and the keys and values of its rows once.

        Args:
            rows: requests, >= 1.
            new_tokens: of each row, >= 1.
            context_tokens: held of each row, >= 0.
        """
        kv_bytes = rows * (context_tokens + new_tokens) * self.kv_bytes_per_token
        return (self.weight_bytes + kv_bytes) / self.bytes_per_s

    def said_of(self, shapes: Sequence[Shape]) -> str:
        """One line: the member's smallest step, and its widest of one token a row, against the floor.

        Args:
            shapes: measured, of the member; at least one of one new token.
        """
        steps = sorted(shape[1:4] for shape in shapes if shape.new_tokens == 1)
        seconds = {shape[1:4]: shape.seconds for shape in shapes}
        # One row with the longest context, and the most rows with theirs.
        alone = max(step for step in steps if step[0] == steps[0][0])
        times = [
            f"{seconds[step] / self.seconds(*step):.2f}x at {step[0]} x 1 after {step[2]}"
            for step in (alone, steps[-1])
        ]
        return (
            f"{self.member} against its memory floor ({self.weight_bytes / 1e9:.3g} GB of weights at "
            f"{self.bytes_per_s / 1e9:.0f} GB/s, {self.seconds(*alone) * 1e3:.3g} ms a step): "
            f"{', '.join(dict.fromkeys(times))}"
        )


def memory_floor(member: LoadedMember) -> MemoryFloor:
    """The floor of a member on its device, whose memory is measured now; raises ValueError for a model-free member."""
    model = member.model
    if model is None:
        raise ValueError(f"{member.name} has no model to run")
    return MemoryFloor(
        member=member.name,
        weight_bytes=weight_bytes(model),
        kv_bytes_per_token=member.kv_bytes_per_token,
        bytes_per_s=copied_bytes_per_s(model.device),
    )


def weight_bytes(model: PreTrainedModel) -> int:
    """Of all weights that a forward reads: all but a table of embeddings that is nothing else, of which rows are read.

    Weights that several modules share count once.
    """
    weights = {weight.data_ptr(): weight.numel() * weight.itemsize for weight in model.parameters()}
    parts: Any = model
    table, head = parts.get_input_embeddings().weight, parts.get_output_embeddings()
    if head is not None and head.weight.data_ptr() != table.data_ptr():
        del weights[table.data_ptr()]
    return sum(weights.values())


@torch.inference_mode()
def copied_bytes_per_s(device: torch.device) -> float:
    """Bytes read and written in a second by copying a large tensor, the median of a few times."""
    size = min(_COPIED_BYTES, int(_MOST_SHARE * total_bytes(device)))
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    taken = []
    for _ in range(_COPIES + 1):
        start = mark(device)
        target.copy_(source)
        taken.append(between_s(start, mark(device)))
    return 2 * size / median(taken[1:])
