"""What the fused forward takes from a model of the Llama family: weights of every layer, norms and rotations.

The other models' modules have the attributes of Llama's, whose names stand in the annotations.

Letters: C positions of the context, H key and value heads, G query heads of each, D head width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from ..kv.member_kv import KVShape
from .multiplying.product_choice import ProductChooser
from .weights import Projection, project

Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayer:
    """One decoder layer.

    Attributes:
        attention_norm, mlp_norm: of the residual stream.
        head_norm: of the query and key heads `[..., H G + H, D]`; None but in Qwen3.
        qkv: queries, keys and values, in this order.
        output: of the attention.
        gate_up: gates, then what they let through.
        down: back to the residual stream.
    """

    attention_norm: Norm
    mlp_norm: Norm
    head_norm: Norm | None
    qkv: Projection
    output: Projection
    gate_up: Projection
    down: Projection


def fuse_layer(layer: LlamaDecoderLayer, products: ProductChooser, *, share_weights: bool) -> FusedLayer:
    """Take a decoder layer of a supported model apart; see `project` for `products` and `share_weights`."""
    attention, mlp = layer.self_attn, layer.mlp
    return FusedLayer(
        attention_norm=norm_of(layer.input_layernorm),
        mlp_norm=norm_of(layer.post_attention_layernorm),
        head_norm=_head_norm(attention) if hasattr(attention, "q_norm") else None,
        qkv=project([attention.q_proj, attention.k_proj, attention.v_proj], products, share_weights=share_weights),
        output=project([attention.o_proj], products, share_weights=share_weights),
        gate_up=project([mlp.gate_proj, mlp.up_proj], products, share_weights=share_weights),
        down=project([mlp.down_proj], products, share_weights=share_weights),
    )


def norm_of(module: LlamaRMSNorm) -> Norm:
    """The function of an RMS norm of transformers."""
    return make_norm(module.weight.detach(), float(module.variance_epsilon))


def _head_norm(attention: LlamaAttention) -> Norm:
    width = attention.head_dim
    queries = attention.q_norm.weight.detach().expand(attention.q_proj.out_features // width, width)
    keys = attention.k_norm.weight.detach().expand(attention.k_proj.out_features // width, width)
    return make_norm(torch.cat([queries, keys]), float(attention.q_norm.variance_epsilon))


def rotation_table(rotary: LlamaRotaryEmbedding, shape: KVShape, context_tokens: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[C, 1, D]` of the model's own RoPE.

    The first half of the sines is negated, so that rotating is x cos + swapped(x) sin, halves swapped.
    """
    positions = torch.arange(context_tokens, device=shape.device)[None]
    cos, sin = rotary(torch.empty(0, dtype=shape.dtype, device=shape.device), positions)
    sin = torch.cat([-sin[..., : shape.head_width // 2], sin[..., shape.head_width // 2 :]], dim=-1)
    return cos.view(context_tokens, 1, shape.head_width).contiguous(), sin.view(context_tokens, 1, shape.head_width)


def make_norm(weight: Tensor, eps: float) -> Norm:
    """A function that normalises the last dimension of `[..., W]` as transformers does, in the quickest way here.

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
