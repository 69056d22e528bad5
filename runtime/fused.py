"""Decoders of the Llama family as a few tensor operations per layer, without a module call.

A stock model's modules cost the same Python per layer however small it is. Here projections of one input are joined as
`[in, out]`, and tokens are kept packed; only queries are padded, for the attention. `fused_supports` says which models
this can stand in for; annotations name Llama's modules, whose attributes the other families share.

`TokenRows` maps members whose tables of tokens are padded differently to one vocabulary, the target's (Qwen2.5: 151,936
rows up to 3B, 152,064 above, for 151,665 tokens). Rows beyond have no token. The target is not changed, so that texts
are those of its `generate()`; every other member writes only tokens of the tokenizer.

Letters: I inputs, O outputs of one projection or of several, T new tokens of all requests, B requests, Q the most of
one, S slots, C positions of the context, H key and value heads, G query heads of each, D head width, N kept tokens, V
rows of the target's table.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM, MistralForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from .caches import KVShape, MemberKV, Placement, Places, SlotCache, let_go, trim
from .forward import ModelForward, WrappedForward, layer_windows, within_window
from .pools.heads import SubsetHead
from .prefixed_kv import SharedAttention
from .products import Multiplier, ProductChooser

FAMILIES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def fused_supports(model: PreTrainedModel) -> str | None:
    """Why this model cannot have a fused forward, None if it can."""
    if type(model) not in FAMILIES:
        names = ", ".join(family.__name__ for family in FAMILIES)
        return f"model must be one of {names}, got {type(model).__name__}"
    return _config_reason(model) or _module_reason(model) or _tensor_reason(model)


def multiplied_weights(model: PreTrainedModel) -> list[Tensor]:
    """The weights that a fused forward multiplies by, tied ones too; none of a model that it does not support.

    Does not read values, so a model without values works too.
    """
    if type(model) not in FAMILIES or _config_reason(model) or _module_reason(model):
        return []
    return [module.weight for name, module in model.named_modules() if name.endswith(("_proj", "lm_head"))]


def _config_reason(model: PreTrainedModel) -> str | None:
    config = model.config
    if config._attn_implementation != "sdpa":
        return f"attention must be 'sdpa', got {config._attn_implementation!r}"
    if config.hidden_act not in ("silu", "swish"):
        return f"hidden_act must be 'silu', got {config.hidden_act!r}"
    rope = model.model.rotary_emb.rope_type
    if "dynamic" in rope or rope == "longrope":
        return f"rope_type must not depend on the length of the text, got {rope!r}"
    return None


def _module_reason(model: PreTrainedModel) -> str | None:
    """Adapters, quantisation, hooks and patched forwards change what a module computes."""
    if model.training:
        return "model must be in evaluation mode, got training mode"
    for name, module in model.named_modules():
        known = (nn.Linear, SubsetHead) if name == "lm_head" else (nn.Linear,)
        if name.endswith(("_proj", "lm_head")) and type(module) not in known:
            return f"{name} must be Linear, got {type(module).__name__}"
        if name.endswith("norm") and not hasattr(module, "variance_epsilon"):
            return f"{name} must be the RMS norm of the model's family, got {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            return f"forwards must be the stock ones without hooks, {name or 'the model'} has another"
    return None


def _tensor_reason(model: PreTrainedModel) -> str | None:
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        return f"weights must be of one floating-point format, got {', '.join(sorted(map(str, dtypes)))}"
    devices = {str(parameter.device) for parameter in model.parameters()}
    if len(devices) != 1 or "meta" in devices:
        return f"weights must be on one device, got {', '.join(sorted(devices))}"
    return None


# Bytes of a weight moved at a time.
_MOVED_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Linear maps of the same input."""

    parts: tuple[Multiplier, ...]  # of weights `[I, O]` of one map or of several fused, or of a part `[I, O']` for each
    bias: Tensor | None  # `[O]`, None if there is none

    def of(self, inputs: Tensor) -> Tensor:
        """`[T, O]` of `[T, I]`."""
        parts = self.parts
        outputs = parts[0].of(inputs) if len(parts) == 1 else torch.cat([part.of(inputs) for part in parts], dim=-1)
        return outputs if self.bias is None else outputs.add_(self.bias)

    def add_to(self, sums: Tensor, inputs: Tensor) -> None:
        """Add `[T, O]` to `sums` in place; for one weight."""
        if self.bias is None and self.parts[0].plainly(len(inputs)):
            sums.addmm_(inputs, self.parts[0].weight)
        else:
            sums.add_(self.of(inputs))


def project(linears: Sequence[nn.Linear], products: ProductChooser, *, share_weights: bool) -> Projection:
    """The linears, all of the same input, as one projection.

    `share_weights` makes one tensor and re-points the linears' parameters to views of it, so that no memory is used
    twice; else the parameters are used as they are, without a copy.
    """
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    parameters = [linear.weight for linear in linears]
    weights = (share(parameters),) if share_weights else tuple(parameter.detach().t() for parameter in parameters)
    parts = tuple(products.multiplier(weight, may_copy=share_weights) for weight in weights)
    return Projection(parts=parts, bias=torch.cat(biases) if biases else None)


def share(parameters: Sequence[Tensor]) -> Tensor:
    """One `[I, O]` tensor of `[O', I]` parameters, which become views of it; an existing one if there is one.

    Holds one new tensor at a time beside all weights; of a mapped file, whose pages are dropped as they are copied,
    only a part. CPU libraries multiply one or two tokens with `[I, O]` 1.2 to 1.6 times as fast as with `[O, I]`.
    """
    joined = _joined(parameters)
    if joined is None:
        outputs, inputs = sum(parameter.shape[0] for parameter in parameters), parameters[0].shape[1]
        joined = torch.empty((inputs, outputs), dtype=parameters[0].dtype, device=parameters[0].device)
        start = 0
        for parameter in parameters:
            for rows in torch.split(parameter.detach(), max(1, _MOVED_BYTES // parameter[0].nbytes)):
                joined[:, start : start + len(rows)] = rows.t()
                start += len(rows)
                let_go(rows)
        start = 0
        for parameter in parameters:
            end = start + parameter.shape[0]
            parameter.data = joined[:, start:end].t()
            start = end
    return joined


def _joined(parameters: Sequence[Tensor]) -> Tensor | None:
    """The tensor of which the parameters are views already, one after the other."""
    first = parameters[0]
    width, total = first.shape[1], sum(parameter.shape[0] for parameter in parameters)
    offset = first.storage_offset()
    for parameter in parameters:
        same = parameter.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or parameter.stride() != (1, total) or parameter.storage_offset() != offset:
            return None
        offset += parameter.shape[0]
    return first.detach().as_strided((width, total), (total, 1), first.storage_offset())


Layouts = dict[str, tuple[int, tuple[int, ...]]]


def layouts_of(model: PreTrainedModel) -> Layouts:
    """The storage position and strides of each parameter, by name; holds no weights."""
    return {name: (parameter.data_ptr(), parameter.stride()) for name, parameter in model.named_parameters()}


@torch.inference_mode(mode=False)
@torch.no_grad()
def lay_back(model: PreTrainedModel, before: Layouts) -> None:
    """Restore the strides of parameters that `share` has laid out again, one after another."""
    for name, parameter in model.named_parameters():
        address, strides = before[name]
        if (parameter.data_ptr(), parameter.stride()) != (address, strides):
            moved = torch.empty_strided(parameter.shape, strides, dtype=parameter.dtype, device=parameter.device)
            parameter.data = moved.copy_(parameter.data)
    trim()  # frees the memory of the slower forward


Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayer:
    """One decoder layer."""

    attention_norm: Norm  # of the residual stream, as `mlp_norm`
    mlp_norm: Norm
    head_norm: Norm | None  # of the query and key heads `[..., H G + H, D]`; None except in Qwen3
    qkv: Projection  # queries, keys and values, in this order
    output: Projection
    gate_up: Projection  # gates, then the values that they gate
    down: Projection


def fuse_layer(layer: LlamaDecoderLayer, products: ProductChooser, *, share_weights: bool) -> FusedLayer:
    """Build from a decoder layer of a supported model; see `project` for `products` and `share_weights`."""
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
    """A function that normalises the last dimension of `[..., W]` as transformers does, in the fastest way here.

    `weight` is `[W]`, or `[..., W]` as broadcast over what is normalised; `eps` is added to the mean square.
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
    """By the norm |x|, two calls fewer: x / sqrt(mean(x^2) + eps) = x sqrt(W) / sqrt(|x|^2 + W eps)."""
    length = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True).hypot_(floor)
    return inputs.div(length).mul_(scaled)


class FusedForward:
    """A model of the Llama family.

    Args:
        model: one that `fused_supports`, which is not checked again.
        share_weights: lay the weights out again and re-point the model's parameters to views of them; values, shapes
            and sharing with other models do not change, strides do. False leaves the model unchanged.
        context_tokens: positions there are, >= 1.
        products: chooses how weights are multiplied; None makes a new chooser.

    Raises:
        ValueError: a product that does not work here.
    """

    name = "fused"

    # A tensor made in inference mode could not become a parameter's data.
    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def __init__(
        self,
        model: PreTrainedModel,
        *,
        share_weights: bool,
        context_tokens: int,
        products: ProductChooser | None = None,
    ) -> None:
        products = products or ProductChooser()
        decoder = model.model
        attention = decoder.layers[0].self_attn
        self.kv_shape = KVShape(
            num_layers=len(decoder.layers),
            num_heads=attention.k_proj.out_features // attention.head_dim,
            head_width=attention.head_dim,
            dtype=model.lm_head.weight.dtype,
            device=model.lm_head.weight.device,
        )
        self.context_tokens = context_tokens
        self._groups = attention.q_proj.out_features // attention.k_proj.out_features
        self._query_heads = self.kv_shape.num_heads * self._groups
        self._attention = SharedAttention(
            self.kv_shape, groups=self._groups, scale=float(attention.scaling), known=products.known
        )
        self._windows = layer_windows(model.config)
        self._spread = model.lm_head.spread if isinstance(model.lm_head, SubsetHead) else None
        # The largest weight first: there is room for its layouts before layers have copies.
        self._head = project([model.lm_head], products, share_weights=share_weights)
        self._layers = [fuse_layer(layer, products, share_weights=share_weights) for layer in decoder.layers]
        self._norm = norm_of(decoder.norm)
        # Last: it may be tied to the head, which was laid out again.
        self._embedding = decoder.embed_tokens.weight.detach()
        self._cos, self._sin = rotation_table(decoder.rotary_emb, self.kv_shape, context_tokens)

    def slot_cache(self) -> SlotCache:
        return SlotCache(self.kv_shape)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> Tensor:
        """Raises ValueError for a run of positions beyond `context_tokens`."""
        hidden = self._layered(functional.embedding(ids, self._embedding), placement, cache)
        return self._logits(self._norm(hidden[keep] if isinstance(keep, slice) else hidden.index_select(0, keep)))

    @torch.inference_mode()
    def with_states(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> tuple[Tensor, Tensor]:
        hidden = ids.clone() if ids.is_floating_point() else functional.embedding(ids, self._embedding)
        states = self._norm(self._layered(hidden, placement, cache))
        return self._logits(states[keep]), states

    def _logits(self, normed: Tensor) -> Tensor:
        logits = self._head.of(normed)
        return logits if self._spread is None else self._spread(logits)

    def _layered(self, hidden: Tensor, placement: Placement, cache: MemberKV) -> Tensor:
        """`[T, W]` the residual stream after all layers, added to `hidden` in place."""
        cos, sin = self._rotation(placement)
        masks = {window: self._additive(placement, window) for window in set(self._windows)}
        for number, (layer, window) in enumerate(zip(self._layers, self._windows, strict=True)):
            heads = self._heads(layer, hidden, cos, sin)
            narrow = window is not None and placement.num_slots > window
            layer.output.add_to(hidden, self._attend(number, heads, placement, cache, masks[window], narrow=narrow))
            gate, up = layer.gate_up.of(layer.mlp_norm(hidden)).chunk(2, dim=-1)
            layer.down.add_to(hidden, functional.silu(gate).mul_(up))
        return hidden

    def _rotation(self, placement: Placement) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[T, 1, D]`."""
        positions = placement.positions
        if not isinstance(positions, slice):
            return self._cos.index_select(0, positions), self._sin.index_select(0, positions)
        if positions.stop > self.context_tokens:
            raise ValueError(f"positions must be < {self.context_tokens}, got {positions.stop - 1}")
        return self._cos[positions], self._sin[positions]

    def _additive(self, placement: Placement, window: int | None) -> Tensor | None:
        """`[B, 1, Q G, S]`: the bool mask as additive scores, made once for all layers; None attends to all."""
        mask = placement.mask
        if window is not None and placement.num_slots > window:
            mask = within_window(placement.looks(self.kv_shape.device), window)
        if mask is None:
            return None
        added = torch.zeros(mask.shape, dtype=self.kv_shape.dtype, device=mask.device)
        added.masked_fill_(mask.logical_not(), -torch.inf)
        return added if self._groups == 1 else added.repeat_interleave(self._groups, dim=2)

    def _heads(self, layer: FusedLayer, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries, keys and values `[T, H G + H + H, D]`, with RoPE; rounded where transformers rounds."""
        heads = layer.qkv.of(layer.attention_norm(hidden)).view(len(hidden), -1, self.kv_shape.head_width)
        turned = heads[:, : self._query_heads + self.kv_shape.num_heads]
        if layer.head_norm is not None:
            turned.copy_(layer.head_norm(turned))
        swapped = turned.roll(self.kv_shape.head_width // 2, -1)
        turned.mul_(cos).add_(swapped.mul_(sin))
        return heads

    def _attend(
        self, layer: int, heads: Tensor, placement: Placement, cache: MemberKV, mask: Tensor | None, *, narrow: bool
    ) -> Tensor:
        """Write the keys and values; returns `[T, H G D]`."""
        split, shape = self._query_heads, self.kv_shape
        cache.write(layer, placement, heads[:, split:].view(len(heads), 2, shape.num_heads, shape.head_width))
        queries = placement.padded(heads[:, :split])
        if self._groups > 1:
            # Query heads of the same keys become more queries, so that keys need not be repeated.
            grouped = queries.view(*queries.shape[:2], shape.num_heads, self._groups, shape.head_width)
            queries = grouped.transpose(2, 3).flatten(1, 2)
        attended = self._attention.attend(layer, queries.transpose(1, 2), placement, cache, mask, narrow=narrow)
        attended = attended.transpose(1, 2)
        if self._groups > 1:
            grouped = attended.view(len(attended), -1, self._groups, *attended.shape[2:])
            attended = grouped.transpose(2, 3)
        return placement.unpadded(attended).flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """How a member's token rows map to those of its pool."""

    own: int  # rows of its table of embeddings
    said: int  # it writes ids below that; <= own
    width: int  # V


class PaddedForward(WrappedForward):
    """A member's forward over the pool's vocabulary: `inner` is over its own, `rows` maps them."""

    def __init__(self, inner: ModelForward, rows: TokenRows) -> None:
        super().__init__(inner)
        self._rows = rows

    def ids(self, ids: Tensor) -> Tensor:
        """Ids as the member reads them: a row of the target that it lacks (no token has it) becomes its last row.

        Only an untrained target writes such a row. Its next tokens do not depend on this.
        """
        rows = self._rows
        return ids if rows.own >= rows.width or ids.is_floating_point() else ids.clamp(max=rows.own - 1)

    @torch.inference_mode()
    def logits(self, logits: Tensor, placement: Placement) -> Tensor:
        """`[N, V]` of the member's `[N, own]`, -inf for rows that it lacks; may change and return the same memory."""
        rows = self._rows
        if rows.own == rows.width:
            logits[..., rows.said :] = -torch.inf
            return logits
        whole = logits.new_full((*logits.shape[:-1], rows.width), -torch.inf)
        whole[..., : rows.said] = logits[..., : rows.said]
        return whole


def over_rows(forward: ModelForward, rows: TokenRows | None) -> ModelForward:
    """A forward over the pool's vocabulary; the same where that is the member's own."""
    return forward if rows is None else PaddedForward(forward, rows)
