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

from ..forward.module_forward import ModuleForward
from ..forward.token_rows import TokenRows, over_rows
from ..kv.placement import Placement
from ..kv.slot_cache import SlotCache

Mask = NDArray[np.bool_]
Slots = NDArray[np.int32]
Numbers = NDArray[np.integer[Any]] | Sequence[int]
REQUEST = "tree"  # the only one of its cache


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


def append_slots(cache: SlotCache, positions: Numbers, mask: Mask) -> Placement:
    """Where Q new contexts go in the cache of one request's contexts; arguments as of `TreeForward.append`."""
    device, num_slots = cache.shape.device, cache.length(REQUEST)
    needed = num_slots + len(positions)
    if needed > cache.capacity:
        cache.reserve([REQUEST], [max(needed, 2 * cache.capacity) - num_slots])
    return cache.place([REQUEST], [len(positions)])._replace(
        positions=torch.as_tensor(positions, dtype=torch.long, device=device),
        mask=torch.as_tensor(mask, device=device)[None, None],
    )


class TreeForward:
    """One model and the cache of one request's contexts. `append` and `cut` change the cache, nothing else.

    Args:
        model: in evaluation mode.
        capacity: slots there is room for from the beginning; more is made by doubling.
        rows: how the model's tokens are those of its pool; None where they are the same.

    Raises:
        ValueError: a model that cannot be run so (`ModuleForward`).
    """

    def __init__(self, model: PreTrainedModel, *, capacity: int = 256, rows: TokenRows | None = None) -> None:
        self._forward = over_rows(ModuleForward(model), rows)
        self._cache = SlotCache(self._forward.kv_shape)
        self._cache.reserve([REQUEST], [capacity])

    @property
    def num_slots(self) -> int:
        """Slots in use."""
        return self._cache.length(REQUEST)

    def cut(self, num_slots: int) -> None:
        """Forget all slots from `num_slots` on."""
        self._cache.roll_back(REQUEST, num_slots)

    def append(self, tokens: Numbers, positions: Numbers, mask: Mask, *, num_logits: int = 0) -> Tensor:
        """Append Q contexts in one forward; returns their logits `[Q, V]`, or those of the last `num_logits`.

        Args:
            tokens: `[Q]` the last token of each context.
            positions: `[Q]` its place in the text, from 0.
            mask: `[Q, num_slots + Q]` the slots each context attends to, its own among them.
            num_logits: 0 for all.
        """
        placement = append_slots(self._cache, positions, mask)
        return self._forward(self._ids(tokens), placement, self._cache, slice(-num_logits, None))

    def append_with_states(
        self, tokens: Numbers, positions: Numbers, mask: Mask, *, num_logits: int = 0
    ) -> tuple[Tensor, Tensor]:
        """As `append`, with the last hidden states `[Q, W]` of all contexts. Letter: W hidden size."""
        placement = append_slots(self._cache, positions, mask)
        return self._forward.with_states(self._ids(tokens), placement, self._cache, slice(-num_logits, None))

    def _ids(self, tokens: Numbers) -> Tensor:
        return torch.as_tensor(tokens, dtype=torch.long, device=self._forward.kv_shape.device)
