"""Forwards of a drafter that reads hidden states, over a `MemberKV`.

Letters: T new tokens of all requests, N of them kept, W hidden size, V vocabulary.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..forward.fused_forward import FusedForward
from ..forward.module_forward import ModuleForward
from ..forward.token_rows import PaddedForward
from ..kv.member_kv import KVShape, MemberKV
from ..kv.placement import Placement
from ..kv.slot_cache import SlotCache
from .input_layer import inputs_of


class FeatureForward:
    """A model with an input layer; see `ModelForward`. Which states it reads, whoever calls `after` says.

    Args:
        model: in evaluation mode, with an input layer (`input_layer.give_input`).
        body: its layers and its head; None runs them by the model's own modules.

    Raises:
        ValueError: as of `ModuleForward`.
    """

    whole_draft = None
    whole_verify = None

    def __init__(
        self, model: PreTrainedModel, body: FusedForward | ModuleForward | PaddedForward | None = None
    ) -> None:
        self._body = ModuleForward(model) if body is None else body
        self._model = model
        self.width = int(model.config.hidden_size)

    @property
    def name(self) -> str:
        """`fused` or `modules`, as its layers run."""
        return self._body.name

    @property
    def kv_shape(self) -> KVShape:
        """What the cache must hold of one token."""
        return self._body.kv_shape

    def slot_cache(self, *, limit_bytes: int | None = None) -> SlotCache:
        """See `ModelForward`."""
        return self._body.slot_cache(limit_bytes=limit_bytes)

    @torch.inference_mode()
    def after(
        self, ids: Tensor, states: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """Feed tokens, each with the state `[T, W]` before it.

        Returns:
            `[N, V]` logits after the kept tokens, and its own states `[T, W]`.
        """
        return self._body.on_inputs(inputs_of(self._model, ids, states), placement, cache, keep)

    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        """After states of zeros: for seconds, which do not depend on states. What is said is nobody's text."""
        return self.with_states(ids, placement, cache, keep)[0]

    def with_states(
        self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """As a call, with its own states."""
        zeros = torch.zeros((len(ids), self.width), dtype=self.kv_shape.dtype, device=self.kv_shape.device)
        return self.after(ids, zeros, placement, cache, keep)
