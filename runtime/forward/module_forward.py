"""A transformers model, run through its own forward, over a `MemberKV`.

Letters: B requests, T new tokens of all of them, Q the most of one request, S slots, H key and value heads, D head
width, N kept tokens, V vocabulary.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from ..kv.member_kv import KVShape, MemberKV
from ..kv.placement import Placement
from ..kv.slot_cache import SlotCache
from .layer_masks import LayerMasks


class PlacedLayer(CacheLayerMixin):
    """One layer of a `MemberKV` during one forward, as transformers wants to see it."""

    def __init__(self, cache: MemberKV, placement: Placement, layer: int) -> None:
        super().__init__()
        self._cache = cache
        self._placement = placement
        self._layer = layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the memory is there."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write `[B, H, Q, D]` keys and values without their padding; returns `[B, H, S, D]`."""
        placement = self._placement
        # Other widths of keys than of values were refused when the forward was made.
        new = torch.stack([key_states, value_states], dim=1).permute(0, 3, 1, 2, 4)
        self._cache.write(self._layer, placement, placement.unpadded(new))
        return self._cache.read(self._layer, placement)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """S and the offset of the first slot."""
        return self._placement.num_slots, 0

    def get_seq_length(self) -> int:
        """Slots in front of the longest request's new ones."""
        return self._placement.num_slots - self._placement.longest

    def get_max_length(self) -> int:
        """No bound."""
        return -1


class ModuleForward:
    """Any causal language model of transformers that is supported (`pools.configs.supported_models`).

    Args:
        model: in evaluation mode; it is not changed.

    Raises:
        ValueError: a model whose caches cannot be rolled back, or one in training mode.
    """

    name = "modules"
    whole_draft = None
    whole_verify = None

    def __init__(self, model: PreTrainedModel) -> None:
        if model.training:
            raise ValueError(f"model must be in evaluation mode, got {type(model).__name__} in training mode")
        self._masks = LayerMasks(model.config)
        self.kv_shape = _probe(model)
        self._model = model

    def slot_cache(self, *, limit_bytes: int | None = None) -> SlotCache:
        """See `ModelForward`."""
        return SlotCache(self.kv_shape)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        """See `ModelForward`."""
        num_layers = self.kv_shape.num_layers
        columns, pick = _kept_columns(ids, placement, keep)
        # Without a 4-D mask transformers makes its own, from lengths that a cache of many requests does not have.
        looks = placement.looks(ids.device)
        logits: Tensor = self._model(
            input_ids=placement.padded(ids),
            position_ids=_positions(placement, ids.device),
            attention_mask=self._masks.of(looks, self.kv_shape.dtype),
            past_key_values=Cache(layers=[PlacedLayer(cache, placement, layer) for layer in range(num_layers)]),
            use_cache=True,
            logits_to_keep=columns,
        ).logits
        return logits.flatten(0, 1) if pick is None else logits.flatten(0, 1).index_select(0, pick)


def _positions(placement: Placement, device: torch.device) -> Tensor:
    positions = placement.positions
    if isinstance(positions, slice):
        positions = torch.arange(positions.start, positions.stop, device=device)
    return placement.padded(positions)


def _kept_columns(ids: Tensor, placement: Placement, keep: Tensor | slice) -> tuple[Tensor | int, Tensor | None]:
    """Columns of `[B, Q]` with a kept token (0: all), and where the kept tokens are in B x columns (None: all)."""
    if keep == slice(None):
        return 0, placement.unpad
    kept = torch.arange(len(ids), device=ids.device)[keep]
    if len(placement.counts) == 1:
        return kept, torch.arange(len(kept), device=ids.device)
    if placement.unpad is not None:
        kept = placement.unpad[kept]
    longest = placement.longest
    columns, column = torch.unique(kept % longest, return_inverse=True)
    return columns, kept.div(longest, rounding_mode="floor") * len(columns) + column


@torch.inference_mode()
def _probe(model: PreTrainedModel) -> KVShape:
    """What one token leaves in a stock cache: configs name these numbers in too many ways."""
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device), past_key_values=cache, use_cache=True)
    kinds = {type(layer) for layer in cache.layers}
    if not kinds or not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        names = sorted(kind.__name__ for kind in kinds)
        raise ValueError(f"a cache that rolls back needs plain layers, got {', '.join(names) or 'none'}")
    states = [state for layer in cache.layers for state in (layer.keys, layer.values)]
    shapes = {tuple(state.shape) for state in states}
    places = {(state.dtype, state.device) for state in states}
    if len(shapes) != 1 or len(places) != 1:
        raise ValueError(f"keys and values of all layers must be alike, got {sorted(shapes)} in {len(places)} places")
    ((_, num_heads, _, head_width),) = shapes
    ((dtype, device),) = places
    return KVShape(num_layers=len(cache.layers), num_heads=num_heads, head_width=head_width, dtype=dtype, device=device)
