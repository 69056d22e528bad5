"""A cache for writing long texts in wide batches: new tokens are written into room that is there already.

transformers' own copies all keys and values at every token.

Letters: B texts, H heads, T tokens held, R tokens that there is room for, D width of a head.
"""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 128  # tokens more at a time


class GrowingLayer(DynamicLayer):
    """Keys and values `[B, H, T, D]`, as views of tensors `[B, H, R, D]`."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - of transformers
        super().__init__(**options)
        self._room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write new tokens after those held; returns all, `[B, H, T, D]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        # Others may have replaced the keys and values, as `batch_repeat_interleave` does.
        is_stale = self._room is None or self.keys.data_ptr() != self._room[0].data_ptr()
        if self._room is None or is_stale or end > self._room[0].shape[-2]:
            self._room = self._larger(key_states, end), self._larger(value_states, end)
            for room, held in zip(self._room, (self.keys, self.values), strict=True):
                if start:
                    room[:, :, :start] = held
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, start:end] = new
        self._show(end)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these texts only."""
        if self._room is not None:
            end = self.get_seq_length()
            self._room = self._room[0][indices], self._room[1][indices]
            self._show(end)

    def _show(self, end: int) -> None:
        assert self._room is not None
        self.keys, self.values = (room[:, :, :end] for room in self._room)

    @staticmethod
    def _larger(states: Tensor, num_tokens: int) -> Tensor:
        return states.new_empty((*states.shape[:2], num_tokens + ROOM, states.shape[-1]))


def growing_cache() -> Cache:
    """Of as many layers as a model asks for."""
    return Cache(layer_class_to_replicate=GrowingLayer)
