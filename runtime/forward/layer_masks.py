"""Which tokens each layer of a model looks at: all, or the last few where the layer has a sliding window.

Caches here keep every token, so that they can be rolled back; a window is a narrower mask. Nothing but the mask says
how far apart two tokens are: the slots a token looks at stand in the order of their positions, in caches with holes
and in token trees as well, so the tokens from one slot on to the newest are counted along the row.

Letters: B requests, Q new tokens, S slots, L layers.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from ..broken_rule import ConfigError

FULL, SLIDING = "full_attention", "sliding_attention"
# Model types that give all layers the window of `sliding_window`; the others name each layer's kind in `layer_types`.
ONE_WINDOW = frozenset({"mistral", "mixtral", "phi3", "starcoder2"})
# Types that cap attention scores or have sinks, which PyTorch's attention (sdpa) has not; eager ones add their mask.
EAGER = frozenset({"gemma2", "vaultgemma", "gpt_oss", "granite_swa", "granitemoe_swa", "flint"})


def attention_of(config: PreTrainedConfig) -> Literal["sdpa", "eager"]:
    """How a model of this config computes attention here."""
    return "eager" if config.model_type in EAGER else "sdpa"


def layer_windows(config: PreTrainedConfig) -> tuple[int | None, ...]:
    """`[L]` tokens that each layer looks back at, its own included; None for all.

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
    """`[..., Q, S]` bool: of the slots each token looks at, the last `window`, its own among them."""
    to_newest = looks.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
    return looks & (to_newest <= window)


class LayerMasks:
    """Turns what tokens may look at into what the modules of a model take as `attention_mask`.

    Args:
        config: of the model.

    Attributes:
        windows: see `layer_windows`.

    Raises:
        ValueError: kinds of layers or of attention that are not supported.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        wanted, found = attention_of(config), config._attn_implementation
        if found != wanted:
            # What is a mask of bools to one is added to the scores by the other: silently wrong.
            raise ValueError(f"attention must be {wanted!r}, got {found!r}")
        self.windows = layer_windows(config)
        self._by_kind = getattr(config, "layer_types", None) is not None
        self._eager = wanted == "eager"

    def of(self, looks: Tensor, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """One mask for all layers, or one for each kind of layer.

        Args:
            looks: `[B, 1, Q, S]` bool, where a token may look: its text so far.
            dtype: of the model.
        """
        window = next((window for window in self.windows if window is not None), None)
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
