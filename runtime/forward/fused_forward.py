"""Decoders of the Llama family as a few tensor operations per layer, without a module call.

The modules of a stock model cost the same Python per layer however small the model is, and so most where the arithmetic
is least. Tokens stay packed; only queries are padded, for the attention.

Letters: B requests, T new tokens of all of them, Q the most of one request, S slots, H key and value heads, G query
heads of each, D head width.
"""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..heads.subset_head import SubsetHead
from ..kv.member_kv import KVShape, MemberKV
from ..kv.placement import Placement
from ..kv.slot_cache import SlotCache
from .fused_layer import FusedLayer, fuse_layer, norm_of, rotation_table
from .fused_support import fused_supports
from .layer_masks import layer_windows, within_window
from .multiplying.product_choice import ProductChooser
from .shared.shared_attention import SharedAttention
from .weights import project


class FusedForward:
    """A model of the Llama family; see `ModelForward`.

    Args:
        model: one that `fused_supports`.
        share_weights: lay the weights out anew and re-point the model's parameters to views of them; values, shapes
            and sharing with other models stay, strides do not. False leaves the model alone.
        context_tokens: positions there are, >= 1.
        products: chooses how weights are multiplied; None takes a chooser of its own.

    Raises:
        ValueError: a model that is not supported, no positions, or a product that does not work here.
    """

    name = "fused"
    whole_draft = None
    whole_verify = None

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
        reason = fused_supports(model)
        if reason is not None:
            raise ValueError(reason)
        if context_tokens < 1:
            raise ValueError(f"context_tokens must be >= 1, got {context_tokens}")
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
        # The largest weight comes first: before layers have copies there is room for what its layouts take meanwhile.
        self._head = project([model.lm_head], products, share_weights=share_weights)
        self._layers = [fuse_layer(layer, products, share_weights=share_weights) for layer in decoder.layers]
        self._norm = norm_of(decoder.norm)
        # Taken last: it may be tied to the head, which was laid out anew.
        self._embedding = decoder.embed_tokens.weight.detach()
        self._cos, self._sin = rotation_table(decoder.rotary_emb, self.kv_shape, context_tokens)

    def slot_cache(self, *, limit_bytes: int | None = None) -> SlotCache:
        """See `ModelForward`."""
        return SlotCache(self.kv_shape)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        """See `ModelForward`; raises ValueError for a run of positions beyond `context_tokens`."""
        hidden = self._layered(functional.embedding(ids, self._embedding), placement, cache)
        return self._logits(self._norm(hidden[keep] if isinstance(keep, slice) else hidden.index_select(0, keep)))

    @torch.inference_mode()
    def with_states(
        self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """See `ModelForward`."""
        return self._with_states(functional.embedding(ids, self._embedding), placement, cache, keep)

    @torch.inference_mode()
    def on_inputs(
        self, inputs: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """See `ModuleForward`."""
        return self._with_states(inputs.clone(), placement, cache, keep)

    def _with_states(
        self, hidden: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        states = self._norm(self._layered(hidden, placement, cache))
        return self._logits(states[keep]), states

    def _logits(self, normed: Tensor) -> Tensor:
        logits = self._head.of(normed)
        return logits if self._spread is None else self._spread(logits)

    def _layered(self, hidden: Tensor, placement: Placement, cache: MemberKV) -> Tensor:
        """`[T, W]` the residual stream after all layers, which are added to what they read."""
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
        """`[B, 1, Q G, S]`: what the attention would make of a bool mask again in every layer; None looks at all."""
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
            # Query heads of the same keys stand side by side as more queries, so that keys need not be repeated.
            grouped = queries.view(*queries.shape[:2], shape.num_heads, self._groups, shape.head_width)
            queries = grouped.transpose(2, 3).flatten(1, 2)
        attended = self._attention.attend(layer, queries.transpose(1, 2), placement, cache, mask, narrow=narrow)
        attended = attended.transpose(1, 2)
        if self._groups > 1:
            grouped = attended.view(len(attended), -1, self._groups, *attended.shape[2:])
            attended = grouped.transpose(2, 3)
        return placement.unpadded(attended).flatten(1)
