"""A transformers model, run through its own forward, over a `MemberKV`.

`ModelForward` is the interface to it. Masks alone say which tokens a layer attends to: caches keep every token, so that
they can be rolled back, and a sliding window is a narrower mask. The slots that a token attends to are in the order of
their positions, in caches with holes and in token trees too, so a window is counted along the row.

Configs do not say whether a model takes masks and caches as given: it may make masks of its own, count positions
itself, look ahead, or keep more of the past than keys and values. `check_masks` tests it: two texts that share their
beginning as one token tree, then texts of two requests over a cache from which tokens are dropped; both must give the
logits of the texts one by one, except for rounding (`TOLERANCES`).

Letters: B requests, T new tokens of all of them, Q the most of one request, S slots, L layers, H key and value heads, D
head width, N kept tokens, V vocabulary.
"""

import inspect
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from .caches import KVShape, MemberKV, Placement, Places, SlotCache
from .refusals import BrokenRuleError, ConfigError, in_one_line

FULL, SLIDING = "full_attention", "sliding_attention"
# Model types that give all layers the window of `sliding_window`; the others name each layer's kind in `layer_types`.
ONE_WINDOW = frozenset({"mistral", "mixtral", "phi3", "starcoder2"})
# Types that cap attention scores or have sinks, which PyTorch's attention (sdpa) lacks; eager ones add their mask.
EAGER = frozenset({"gemma2", "vaultgemma", "gpt_oss", "granite_swa", "granitemoe_swa", "flint"})


def attention_of(config: PreTrainedConfig) -> Literal["sdpa", "eager"]:
    """How a model of this config computes attention here."""
    return "eager" if config.model_type in EAGER else "sdpa"


def layer_windows(config: PreTrainedConfig) -> tuple[int | None, ...]:
    """`[L]` tokens that each layer attends to, the current one included; None for all.

    Raises:
        ConfigError: a kind of layer other than full and sliding attention, or a window whose layers are not known.
    """
    values: Any = config
    window: int | None = getattr(values, "sliding_window", None) or None
    kinds = getattr(values, "layer_types", None)
    if kinds is not None:
        other = sorted(set(kinds) - {FULL, SLIDING})
        if other or (SLIDING in kinds and window is None):
            raise ConfigError("layer_types", f"must be {FULL} or {SLIDING} with a sliding_window", kinds)
        return tuple(window if kind == SLIDING else None for kind in kinds)
    if window and values.model_type not in ONE_WINDOW:
        raise ConfigError("sliding_window", f"must be null for model_type {values.model_type}", window)
    return (window,) * int(values.num_hidden_layers)


def within_window(looks: Tensor, window: int) -> Tensor:
    """`[..., Q, S]` bool: of the slots each token attends to, the last `window`, its own included."""
    to_newest = looks.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
    return looks & (to_newest <= window)


class LayerMasks:
    """Turns what tokens may attend to into a model's `attention_mask`.

    Raises:
        ValueError: kinds of layers or of attention that are not supported.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        wanted, found = attention_of(config), config._attn_implementation
        if found != wanted:
            # One kind takes a mask of bools, the other adds it to the scores: silently wrong.
            raise ValueError(f"attention must be {wanted!r}, got {found!r}")
        self._windows = layer_windows(config)
        self._by_kind = getattr(config, "layer_types", None) is not None
        self._eager = wanted == "eager"

    def of(self, looks: Tensor, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """One mask for all layers, or one for each kind of layer.

        `looks` is `[B, 1, Q, S]` bool, where a token may attend: its text so far. `dtype` is the model's.
        """
        window = next((window for window in self._windows if window is not None), None)
        if window is None:
            return self._shaped(looks, dtype)
        narrow = self._shaped(within_window(looks, window), dtype)
        return {FULL: self._shaped(looks, dtype), SLIDING: narrow} if self._by_kind else narrow

    def _shaped(self, looks: Tensor, dtype: torch.dtype) -> Tensor:
        """Eager attention adds the mask to the scores."""
        if not self._eager:
            return looks
        added = torch.zeros(looks.shape, dtype=dtype, device=looks.device)
        return added.masked_fill_(looks.logical_not(), torch.finfo(dtype).min)


class ModelForward(Protocol):
    """One model over its cache. Letters: T new tokens of all requests, N of them kept, V vocabulary."""

    @property
    def name(self) -> str:
        """`fused`, `modules` or `compiled`."""

    @property
    def kv_shape(self) -> KVShape:
        """Shape of one token's entry in the cache."""

    def slot_cache(self) -> SlotCache:
        """An empty cache whose slots are positions, of the kind that is fastest for this forward."""

    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> Tensor:
        """Feed tokens, writing their keys and values to the cache.

        Args:
            ids: `[T]` new tokens, request after request.
            placement: where they go, just made by `cache.place`; it serves one forward.
            cache: of shape `kv_shape`; mutated.
            keep: `[N]` indices into the T tokens, or a slice of them.

        Returns:
            `[N, V]` logits after the kept tokens.
        """

    def with_states(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> tuple[Tensor, Tensor]:
        """As a call, and the last hidden states `[T, W]` of all tokens, after the final norm. Letter: W hidden size.

        In place of tokens, `ids` may be inputs `[T, W]` of the first layer.

        Raises:
            ValueError: a forward that does not return them.
        """


class WrappedForward:
    """A `ModelForward` in front of another one: a subclass changes the ids that go in, or what comes out."""

    def __init__(self, inner: ModelForward) -> None:
        self.name, self.kv_shape, self.slot_cache = inner.name, inner.kv_shape, inner.slot_cache
        self._inner = inner

    def ids(self, ids: Tensor) -> Tensor:
        """What the inner forward is fed, `[T]`."""
        return ids

    def logits(self, logits: Tensor, placement: Placement) -> Tensor:
        """What is returned of its logits `[N, V]`; may be the same memory, changed."""
        return logits

    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> Tensor:
        return self.logits(self._inner(self.ids(ids), placement, cache, keep), placement)

    def with_states(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> tuple[Tensor, Tensor]:
        logits, states = self._inner.with_states(self.ids(ids), placement, cache, keep)
        return self.logits(logits, placement), states


# Names of the cache argument of forwards: the first since transformers 5.24, the second before.
CACHE_ARGUMENTS = ("cache", "past_key_values")


def find_cache_argument(model_class: type[PreTrainedModel]) -> str | None:
    """The name in the signature of the forward, as a model's code may be older than transformers; None without one."""
    arguments = inspect.signature(model_class.forward).parameters
    return next((name for name in CACHE_ARGUMENTS if name in arguments), None)


def cache_argument(model: PreTrainedModel) -> str:
    """The name for a call of this model; raises ValueError if its forward takes no cache."""
    name = find_cache_argument(type(model))
    if name is None:
        raise ValueError(f"model must be one whose forward takes a cache, got {type(model).__name__}")
    return name


class KeysValues(Protocol):
    """The part of `MemberKV` that a forward uses."""

    def write(self, layer: int, placement: Placement, keys_values: Tensor) -> None:
        """See `MemberKV`."""

    def read(self, layer: int, placement: Placement) -> tuple[Tensor, Tensor]:
        """See `MemberKV`."""


class PlacedLayer(CacheLayerMixin):
    """One layer of a `MemberKV` during one forward, in transformers' interface."""

    def __init__(self, cache: KeysValues, placement: Placement, layer: int) -> None:
        super().__init__()
        self._cache = cache
        self._placement = placement
        self._layer = layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the memory is there."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write `[B, H, Q, D]` keys and values without their padding; returns `[B, H, S, D]`."""
        placement = self._placement
        # Different widths of keys and values were rejected when the forward was made.
        new = torch.stack([key_states, value_states], dim=1).permute(0, 3, 1, 2, 4)
        self._cache.write(self._layer, placement, placement.unpadded(new))
        return self._cache.read(self._layer, placement)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(S, offset of the first slot)."""
        return self._placement.num_slots, 0

    def get_seq_length(self) -> int:
        """Slots in front of the longest request's new ones."""
        return self._placement.num_slots - self._placement.longest

    def get_max_length(self) -> int:
        """No bound."""
        return -1


class ModuleForward:
    """Any causal language model of transformers that is supported (`runtime/pools/configs.py`); it is not changed.

    Raises:
        ValueError: a model whose forward takes no cache or whose caches cannot be rolled back, or one in training mode.
    """

    name = "modules"

    def __init__(self, model: PreTrainedModel) -> None:
        if model.training:
            raise ValueError(f"model must be in evaluation mode, got {type(model).__name__} in training mode")
        self._masks = LayerMasks(model.config)
        self._cache_argument = cache_argument(model)
        self.kv_shape = kv_shape_of(model)
        self._model = model

    def slot_cache(self) -> SlotCache:
        return SlotCache(self.kv_shape)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> Tensor:
        return self.run(ids, placement, cache, keep)

    @torch.inference_mode()
    def with_states(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> tuple[Tensor, Tensor]:
        found: list[Tensor] = []
        # Not its base model, which OPT does not use.
        decoder = self._model.get_decoder()
        watch = decoder.register_forward_hook(lambda *said: found.append(said[-1].last_hidden_state))
        try:
            logits = self.run(ids, placement, cache, keep)
        finally:
            watch.remove()
        if not found:
            name = type(self._model).__name__
            raise ValueError(f"model must call its decoder, whose last hidden states are read, got {name}")
        return logits, placement.unpadded(found[0])

    def run(self, ids: Tensor, placement: Placement, cache: KeysValues, keep: Places) -> Tensor:
        """As a call, to be called in inference mode; `ids` may be inputs of the first layer."""
        num_layers, device = self.kv_shape.num_layers, self.kv_shape.device
        columns, pick = _kept_columns(len(ids), device, placement, keep)
        inputs = {"inputs_embeds" if ids.is_floating_point() else "input_ids": placement.padded(ids)}
        positions = placement.positions
        if isinstance(positions, slice):
            positions = torch.arange(positions.start, positions.stop, device=device)
        # Without a 4-D mask transformers makes its own, from one length, which a cache of many requests does not have.
        looks = placement.looks(device)
        layers = Cache(layers=[PlacedLayer(cache, placement, layer) for layer in range(num_layers)])
        logits: Tensor = self._model(
            **inputs,
            position_ids=placement.padded(positions),
            attention_mask=self._masks.of(looks, self.kv_shape.dtype),
            use_cache=True,
            logits_to_keep=columns,
            **{self._cache_argument: layers},
        ).logits
        return logits.flatten(0, 1) if pick is None else logits.flatten(0, 1).index_select(0, pick)


def _kept_columns(
    count: int, device: torch.device, placement: Placement, keep: Places
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
    """The shape of one token in a stock cache, by trying it: configs name these numbers in too many ways.

    Raises:
        BrokenRuleError: a model whose caches cannot be rolled back, or whose config names fewer layers than it has.
    """
    held, named = getattr(model.get_decoder(), "layers", ()), int(model.config.num_hidden_layers)
    if len(held) > named:
        raise BrokenRuleError(f"must be a model whose config names its {len(held)} layers", f"{named}")
    if model.device.type == "meta":  # other implementations of experts need values for routing
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


# Largest difference of logits that rounding explains, as a share of the largest logit.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}


def apart_by_more_than_rounding(found: Tensor, expected: Tensor, dtype: torch.dtype) -> tuple[float, float] | None:
    """(largest difference, what rounding explains) if logits are further apart; else None.

    Non-finite logits count as equal where both have them: other checks find broken weights. The logits have one shape;
    `dtype` is of the model that computed them.
    """
    finite = expected.isfinite()
    any_finite = bool(finite.any())
    worst = float((found - expected)[finite].abs().max()) if any_finite else 0.0
    limit = TOLERANCES[dtype] * float(expected[finite].abs().max()) if any_finite else 0.0
    # Not `worst > limit`, which is false for NaN.
    return None if worst <= limit and bool((found.isfinite() == finite).all()) else (worst, limit)


# Families whose answers are compared with those of `generate()` in tests.
KNOWN = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox"})
# Slots 0, 1, 3 are one text, slots 0, 2 the other.
POSITIONS = (0, 1, 1, 2)
LOOKS = ((1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 0, 1))
TEXTS = ((0,), (0, 1), (0, 2), (0, 1, 3))
# Forwards over a cache, by request: (tokens that the cache keeps, new tokens).
STEPS = ({"a": (0, 7), "b": (0, 3)}, {"a": (5, 2), "b": (3, 1)}, {"b": (2, 4)}, {"a": (7, 5), "b": (6, 1)})
# What models raise for arguments that they do not support.
UNFIT = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError)


def masks_known(config: PreTrainedConfig) -> bool:
    """Whether a model of this config is of a known family, which is not tested."""
    return config.model_type in KNOWN


@torch.inference_mode()
def check_masks(model: PreTrainedModel) -> None:
    """Raises BrokenRuleError for a model that does not attend exactly as its mask says; skips known families."""
    config: Any = model.config
    if masks_known(config):
        return
    for tried, takes, does in (
        (_tree, "a mask for each token", "looks where its mask says"),
        (_over_a_cache, "a cache that tokens are dropped from", "gives the same logits with a cache as without"),
    ):
        try:
            pairs = tried(model)
        except UNFIT as error:
            raise BrokenRuleError(f"must be a model that takes {takes} ({in_one_line(error)})") from error
        for found, expected in pairs:
            if apart_by_more_than_rounding(found.float(), expected.float(), model.dtype) is not None:
                rule = f"must be a model that {does}, model_type {config.model_type} does not"
                raise BrokenRuleError(rule, "other logits")


def _tree(model: PreTrainedModel) -> list[tuple[Tensor, Tensor]]:
    """Logits of a token tree, and those of its texts one by one."""
    ids = _some_tokens(model, len(POSITIONS))
    looks = torch.tensor(LOOKS, dtype=torch.bool, device=model.device)[None, None]
    found = model(
        input_ids=ids[None],
        position_ids=torch.tensor([POSITIONS], device=model.device),
        attention_mask=LayerMasks(model.config).of(looks, model.dtype),
        use_cache=False,
    ).logits[0]
    return [(found, torch.cat([_stock(model, ids[list(text)]) for text in TEXTS]))]


def _over_a_cache(model: PreTrainedModel) -> list[tuple[Tensor, Tensor]]:
    """Logits after the newest tokens of texts whose ends are dropped and fed again, and those of the texts alone."""
    forward = ModuleForward(model)
    cache, device = forward.slot_cache(), forward.kv_shape.device
    ids = _some_tokens(model, 40)
    texts: dict[str, Tensor] = {}
    pairs = []
    for row, step in enumerate(STEPS):
        counts = [count for _, count in step.values()]
        for name, (kept, count) in step.items():
            cache.roll_back(name, kept)
            new = ids[7 * row + len(name) :][:count].roll(row + ord(name))
            texts[name] = torch.cat([texts.get(name, new[:0])[:kept], new])
        fed = torch.cat([texts[name][-count:] for name, count in zip(step, counts, strict=True)])
        newest = torch.tensor(counts, device=device).cumsum(0) - 1
        logits = forward(fed, cache.place(list(step), counts), cache, newest)
        pairs.append((logits, torch.cat([_stock(model, texts[name]) for name in step])))
    return pairs


def _some_tokens(model: PreTrainedModel, count: int) -> Tensor:
    config: Any = model.config
    return torch.arange(count, device=model.device) * 7 % int(config.vocab_size)


def _stock(model: PreTrainedModel, text: Tensor) -> Tensor:
    """`[1, V]` logits after a text, by the model without cache and mask."""
    logits: Tensor = model(input_ids=text[None], use_cache=False).logits[0, -1:]
    return logits
