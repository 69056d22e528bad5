"""By what it is noticed that a model was changed since it was prepared."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..forward.fused_support import fused_supports

Marks = list[tuple[object, ...]]

# Values of each weight that are compared.
_NUM_VALUES = 8


def marks_of(models: Iterable[PreTrainedModel]) -> Marks:
    """What differs as soon as models are changed: settings, hooks, and of weights the place, the writes, some values.

    Values, as fused optimizers and writers to `.data` do not tell torch of what they write. A write past torch to a
    part of a weight is not seen.
    """
    marks: Marks = []
    for model in models:
        marks.append((fused_supports(model), _settings(vars(model.config))))
        marks += [(name, type(module), _settings(vars(module))) for name, module in model.named_modules()]
        tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers()) if tensor.numel()]
        marks += [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors]
        # Not of buffers: some rotations write the same values to theirs in every forward.
        marks.append(tuple(0 if weight.is_inference() else weight._version for weight in model.parameters()))
        some = torch.cat([_some(tensor.reshape(1, *tensor.shape)) for tensor in tensors])
        marks.append(tuple(some.view(torch.int64).tolist()))  # by their bits, as NaN is not itself
    return marks


def _settings(attributes: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    """Numbers, texts and functions among attributes."""
    return tuple((name, value) for name, value in attributes.items() if _is_plain(value))


def _is_plain(value: object) -> bool:
    return isinstance(value, int | float | str | torch.dtype) or (callable(value) and not isinstance(value, nn.Module))


def _some(tensor: Tensor) -> Tensor:
    """A few values from all over a tensor, in float64, in which every float and small integer keeps its value."""
    places = torch.linspace(0, tensor.numel() - 1, _NUM_VALUES).long()
    return tensor[torch.unravel_index(places.to(tensor.device), tensor.shape)].double().cpu()
