"""A decoder's weights laid out for few calls: projections of one input side by side, stored as `[in, out]`.

Letters: I inputs, O outputs of one projection or of several side by side, T tokens.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Fewest multiplications at which oneDNN's kernels, twice as quick as the BLAS on AMD processors, outweigh what a call
# of it costs.
ONEDNN_MULTIPLICATIONS = 2**19


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Linear maps of the same input.

    Attributes:
        weights: `[I, O]` of one map or of several fused, or a part `[I, O']` for each.
        bias: `[O]`, None if there is none.
        onednn_tokens: fewest tokens that are multiplied by oneDNN.
    """

    weights: tuple[Tensor, ...]
    bias: Tensor | None
    onednn_tokens: int

    def of(self, inputs: Tensor) -> Tensor:
        """`[T, O]` of `[T, I]`."""
        quick = len(inputs) >= self.onednn_tokens
        parts = [_onednn(inputs, weight) if quick else inputs.mm(weight) for weight in self.weights]
        outputs = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return outputs if self.bias is None else outputs.add_(self.bias)

    def add_to(self, sums: Tensor, inputs: Tensor) -> None:
        """Add `[T, O]` to `sums` in place; for one weight."""
        if self.bias is not None or len(inputs) >= self.onednn_tokens:
            sums.add_(self.of(inputs))
        else:
            sums.addmm_(inputs, self.weights[0])


def _onednn(inputs: Tensor, weight: Tensor) -> Tensor:
    outputs: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight.t(), None, "none", [], "")
    return outputs


def project(linears: Sequence[nn.Linear], *, share_weights: bool) -> Projection:
    """The linears as one projection.

    Args:
        linears: of the same input.
        share_weights: make one tensor and re-point the linears' parameters to views of it, so that no memory is
            taken twice; else the parameters stay as they are.
    """
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    parameters = [linear.weight for linear in linears]
    weights = (share(parameters),) if share_weights else tuple(parameter.detach().t() for parameter in parameters)
    return Projection(
        weights=weights, bias=torch.cat(biases) if biases else None, onednn_tokens=_onednn_tokens(weights[0])
    )


def _onednn_tokens(weight: Tensor) -> int:
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not _has_onednn():
        return sys.maxsize
    return max(2, ONEDNN_MULTIPLICATIONS // weight.numel())


def _has_onednn() -> bool:
    """Whether torch has the operation, which is not public but what its own compiler calls; it is slower without."""
    try:
        product = _onednn(torch.ones(2, 3), torch.ones(3, 1))
    except (AttributeError, RuntimeError, TypeError):  # absent, not built in, or with other arguments
        return False
    return product.tolist() == [[3.0], [3.0]]


def share(parameters: Sequence[Tensor]) -> Tensor:
    """One `[I, O]` tensor of `[O', I]` parameters, which become views of it; the one made before if there is one.

    `[I, O]`, as CPU libraries multiply one or two tokens with it 1.2 to 1.6 times as fast as with `[O, I]`.
    """
    joined = _joined(parameters)
    if joined is None:
        joined = torch.cat([parameter.detach().t() for parameter in parameters], dim=1).contiguous()
        start = 0
        for parameter in parameters:
            end = start + parameter.shape[0]
            parameter.data = joined[:, start:end].t()
            start = end
    return joined


def _joined(parameters: Sequence[Tensor]) -> Tensor | None:
    """The tensor that the parameters are views of already, side by side."""
    first = parameters[0]
    width, total = first.shape[1], sum(parameter.shape[0] for parameter in parameters)
    offset = first.storage_offset()
    for parameter in parameters:
        same = parameter.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or parameter.stride() != (1, total) or parameter.storage_offset() != offset:
            return None
        offset += parameter.shape[0]
    return first.detach().as_strided((width, total), (total, 1), first.storage_offset())
