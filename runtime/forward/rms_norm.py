"""RMS normalisation as the models of transformers do it, in the quickest way for a number format and device."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Norm = Callable[[Tensor], Tensor]


def make_norm(weight: Tensor, eps: float) -> Norm:
    """A function that normalises the last dimension of `[..., W]`.

    Args:
        weight: `[W]`, or `[..., W]` as broadcast over what is normalised.
        eps: added to the mean square.
    """
    width = weight.shape[-1]
    if weight.dtype != torch.float32:
        return lambda inputs: _rounded(inputs, weight, eps)
    if weight.device.type == "cpu":
        scaled = weight * math.sqrt(width)
        floor = torch.tensor(math.sqrt(width * eps), dtype=weight.dtype)
        return lambda inputs: _by_length(inputs, scaled, floor)
    return lambda inputs: functional.rms_norm(inputs, (width,), None, eps).mul_(weight)


def _rounded(inputs: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Through float32 and rounded before the weight, as transformers does (for float64 too)."""
    single = inputs.float()
    single = single * torch.rsqrt(single.square().mean(-1, keepdim=True) + eps)
    return single.to(inputs.dtype).mul_(weight)


def _by_length(inputs: Tensor, scaled: Tensor, floor: Tensor) -> Tensor:
    """By the length |x|, two calls fewer: x / sqrt(mean(x^2) + eps) = x sqrt(W) / sqrt(|x|^2 + W eps)."""
    length = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True).hypot_(floor)
    return inputs.div(length).mul_(scaled)
