"""Evaluate many contexts of a token tree per forward, over one KV cache that holds prompt, trunk and tree.

A new context is one query: it attends to the prompt, its own ancestors and itself, by a 4-D mask, at explicit
positions; layers with a sliding window attend to the last of these. Its slot in the cache says nothing of its position;
slots are only ever appended or cut.

Letters: B rows, H heads, Q new tokens, S slots, D head width, V vocabulary, F ancestors off the trunk.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from ..forward.layer_masks import LayerMasks

Mask = NDArray[np.bool_]
Slots = NDArray[np.int32]
Numbers = NDArray[np.integer[Any]] | Sequence[int]


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values `[B, H, S, D]` in room that doubles, so that appending copies only what is new."""

    is_croppable = False

    def __init__(self, *, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make room, of zeros: a slot outside the mask must still hold finite numbers."""
        self.keys = self._room(key_states)
        self.values = self._room(value_states)
        self.is_initialized = True

    def _room(self, states: Tensor) -> Tensor:
        rows, heads, _, width = states.shape
        return states.new_zeros((rows, heads, self.capacity, width))

    def _grow(self, needed: int) -> None:
        self.capacity = max(needed, 2 * self.capacity)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self._room(old)
            new[:, :, : self.length] = old[:, :, : self.length]
            setattr(self, name, new)

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Append Q slots; returns views of all S slots in use."""
        end = self.length + key_states.shape[2]
        if not self.is_initialized:
            self.capacity = max(self.capacity, end)
            self.lazy_initialization(key_states, value_states)
        elif end > self.capacity:
            self._grow(end)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def cut(self, length: int) -> None:
        """Forget all slots from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length must be in [0, {self.length}], got {length}")
        self.length = length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Slots after the next forward, and their offset."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Slots in use."""
        return self.length

    def get_max_length(self) -> int:
        """No bound: the room grows."""
        return -1


def causal_mask(start: int, count: int) -> Mask:
    """`[Q, S]` of `count` tokens in a row after `start` slots of the same text: each sees all before it and itself."""
    return np.arange(start + count) <= np.arange(start, start + count)[:, None]


def tree_mask(last_trunk_slot: Slots, path: Slots, num_slots: int) -> Mask:
    """`[Q, num_slots + Q]` of contexts off a trunk: each sees the trunk up to where it left, its path, and itself.

    Args:
        last_trunk_slot: `[Q]` slot of the last token each context shares with the trunk.
        path: `[Q, F]` slots of its ancestors after that; all contexts are equally far from the trunk.
        num_slots: slots in use before the new contexts are appended.
    """
    count = len(last_trunk_slot)
    mask = np.arange(num_slots + count) <= last_trunk_slot[:, None]
    own = num_slots + np.arange(count)
    np.put_along_axis(mask, np.column_stack([path, own]), values=True, axis=1)
    return mask


def text_logits(model: PreTrainedModel, text: Sequence[int], num_logits: int) -> Tensor:
    """`[num_logits, V]` logits of a model after the last tokens of a text, from one forward over all of it."""
    forward = TreeForward(model, capacity=len(text))
    return forward.append(text, range(len(text)), causal_mask(0, len(text)), num_logits=num_logits)


class TreeForward:
    """One model and the cache of one request's contexts. `append` and `cut` change the cache, nothing else."""

    def __init__(self, model: PreTrainedModel, *, capacity: int = 256) -> None:
        self.model = model
        self._masks = LayerMasks(model.config)
        self._layers = [SlotLayer(capacity=capacity) for _ in self._masks.windows]
        self._cache = Cache(layers=self._layers)

    @property
    def num_slots(self) -> int:
        """Slots in use."""
        return self._layers[0].length

    def cut(self, num_slots: int) -> None:
        """Forget all slots from `num_slots` on."""
        for layer in self._layers:
            layer.cut(num_slots)

    @torch.inference_mode()
    def append(self, tokens: Numbers, positions: Numbers, mask: Mask, *, num_logits: int = 0) -> Tensor:
        """Append Q contexts in one forward; returns their logits `[Q, V]`, or those of the last `num_logits`.

        Args:
            tokens: `[Q]` the last token of each context.
            positions: `[Q]` its place in the text, from 0.
            mask: `[Q, num_slots + Q]` the slots each context attends to, its own among them.
            num_logits: 0 for all.
        """
        device = self.model.device
        logits: Tensor = self.model(
            input_ids=torch.as_tensor(tokens, dtype=torch.long, device=device)[None],
            position_ids=torch.as_tensor(positions, dtype=torch.long, device=device)[None],
            attention_mask=self._masks.of(torch.as_tensor(mask, device=device)[None, None], self.model.dtype),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=num_logits,
        ).logits[0]
        return logits
