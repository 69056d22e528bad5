"""A transformers model, run through its own forward, over a `MemberKV`.

Letters: B requests, T new tokens of all of them, Q the most of one request, S slots, H key and value heads, D head
width, N kept tokens, V vocabulary.
"""

import inspect

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

from ..broken_rule import BrokenRuleError
from ..kv.member_kv import KVShape, MemberKV
from ..kv.placement import Placement
from ..kv.slot_cache import SlotCache
from .layer_masks import LayerMasks

# What forwards call the cache that they are given: the first since transformers 5.24, the second before.
CACHE_ARGUMENTS = ("cache", "past_key_values")


def find_cache_argument(model_class: type[PreTrainedModel]) -> str | None:
    """The name in the signature of the forward, as a model's own code may be older than transformers; None for none."""
    arguments = inspect.signature(model_class.forward).parameters
    return next((name for name in CACHE_ARGUMENTS if name in arguments), None)


def cache_argument(model: PreTrainedModel) -> str:
    """The name for a call of this model; raises ValueError if its forward takes no cache."""
    name = find_cache_argument(type(model))
    if name is None:
        raise ValueError(f"model must be one whose forward takes a cache, got {type(model).__name__}")
    return name


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
        ValueError: a model whose forward takes no cache or whose caches cannot be rolled back, or one in training mode.
    """

    name = "modules"
    whole_draft = None
    whole_verify = None

    def __init__(self, model: PreTrainedModel) -> None:
        if model.training:
            raise ValueError(f"model must be in evaluation mode, got {type(model).__name__} in training mode")
        self._masks = LayerMasks(model.config)
        self._cache_argument = cache_argument(model)
        self.kv_shape = kv_shape_of(model)
        self._model = model

    def slot_cache(self, *, limit_bytes: int | None = None) -> SlotCache:
        """See `ModelForward`."""
        return SlotCache(self.kv_shape)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        """See `ModelForward`."""
        return self._run({"input_ids": placement.padded(ids)}, len(ids), placement, cache, keep)

    @torch.inference_mode()
    def with_states(
        self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """See `ModelForward`."""
        return self._with_states({"input_ids": placement.padded(ids)}, len(ids), placement, cache, keep)

    @torch.inference_mode()
    def on_inputs(
        self, inputs: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """As `with_states`, from what the first layer reads, `[T, W]`, in place of tokens. Letter: W hidden size."""
        return self._with_states({"inputs_embeds": placement.padded(inputs)}, len(inputs), placement, cache, keep)

    def _with_states(
        self, inputs: dict[str, Tensor], count: int, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        found: list[Tensor] = []
        # Not its base model, which OPT passes by.
        decoder = self._model.get_decoder()
        watch = decoder.register_forward_hook(lambda *said: found.append(said[-1].last_hidden_state))
        try:
            logits = self._run(inputs, count, placement, cache, keep)
        finally:
            watch.remove()
        if not found:
            name = type(self._model).__name__
            raise ValueError(f"model must call its decoder, whose last hidden states are read, got {name}")
        return logits, placement.unpadded(found[0])

    def _run(
        self, inputs: dict[str, Tensor], count: int, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> Tensor:
        """`[N, V]` logits of T tokens, `count`."""
        num_layers, device = self.kv_shape.num_layers, self.kv_shape.device
        columns, pick = _kept_columns(count, device, placement, keep)
        # Without a 4-D mask transformers makes its own, from lengths that a cache of many requests does not have.
        looks = placement.looks(device)
        layers = Cache(layers=[PlacedLayer(cache, placement, layer) for layer in range(num_layers)])
        logits: Tensor = self._model(
            **inputs,
            position_ids=_positions(placement, device),
            attention_mask=self._masks.of(looks, self.kv_shape.dtype),
            use_cache=True,
            logits_to_keep=columns,
            **{self._cache_argument: layers},
        ).logits
        return logits.flatten(0, 1) if pick is None else logits.flatten(0, 1).index_select(0, pick)


def _positions(placement: Placement, device: torch.device) -> Tensor:
    positions = placement.positions
    if isinstance(positions, slice):
        positions = torch.arange(positions.start, positions.stop, device=device)
    return placement.padded(positions)


def _kept_columns(
    count: int, device: torch.device, placement: Placement, keep: Tensor | slice
) -> tuple[Tensor | int, Tensor | None]:
    """Columns of `[B, Q]` with a kept token (0: all), and where the kept tokens are in B x columns (None: all)."""
    if keep == slice(None):
        return 0, placement.unpad
    kept = torch.arange(count, device=device)[keep]
    if len(placement.counts) == 1:
        return kept, torch.arange(len(kept), device=device)
    if placement.unpad is not None:
        kept = placement.unpad[kept]
    longest = placement.longest
    columns, column = torch.unique(kept % longest, return_inverse=True)
    return columns, kept.div(longest, rounding_mode="floor") * len(columns) + column


@torch.inference_mode()
def kv_shape_of(model: PreTrainedModel) -> KVShape:
    """What one token leaves in a stock cache: configs name these numbers in too many ways.

    Raises:
        BrokenRuleError: a model whose caches cannot be rolled back, or whose config names fewer layers than it has.
    """
    held, named = getattr(model.get_decoder(), "layers", ()), int(model.config.num_hidden_layers)
    if len(held) > named:
        raise BrokenRuleError(f"must be a model whose config names its {len(held)} layers", f"{named}")
    if model.device.type == "meta":  # other ways to run experts ask which of them a token goes to
        model.set_experts_implementation("batched_mm")
    cache = DynamicCache(config=model.config)
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    itself = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=model.device)
    looks = LayerMasks(model.config).of(itself, model.dtype)
    model(input_ids=token, position_ids=token, attention_mask=looks, use_cache=True, **{cache_argument(model): cache})
    kinds = {type(layer) for layer in cache.layers}
    if not kinds or not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        names = sorted(kind.__name__ for kind in kinds)
        raise BrokenRuleError("must be a model with plain caches, which roll back", ", ".join(names) or "none")
    states = [state for layer in cache.layers for state in (layer.keys, layer.values)]
    shapes = {tuple(state.shape) for state in states}
    places = {(state.dtype, state.device) for state in states}
    if len(shapes) != 1 or len(places) != 1:
        rule = "must be a model whose layers have keys and values of one shape, in one place"
        raise BrokenRuleError(rule, f"{sorted(shapes)} in {len(places)}")
    ((_, num_heads, _, head_width),) = shapes
    ((dtype, device),) = places
    return KVShape(num_layers=len(cache.layers), num_heads=num_heads, head_width=head_width, dtype=dtype, device=device)
