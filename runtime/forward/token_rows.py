"""Members whose tables of tokens are padded differently: one vocabulary, the target's, for all of a pool.

Models of one family share a tokenizer and round their tables up to different sizes (Qwen2.5: 151,936 rows up to 3B,
152,064 above, for 151,665 tokens). No token belongs to the rows beyond. The target is left as it is, so that texts are
those of its `generate()`. Every other member writes only tokens of the tokenizer, and has logits as wide as the
target's.

Letters: T new tokens of all requests, N of them kept, V rows of the target's table.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kv.member_kv import KVShape, MemberKV
from ..kv.placement import Placement
from ..kv.slot_cache import SlotCache
from .fused_forward import FusedForward
from .module_forward import ModuleForward


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """How a member's tokens are those of its pool.

    Attributes:
        own: rows of its table of embeddings.
        said: it writes tokens below that; <= own.
        width: V.
    """

    own: int
    said: int
    width: int

    def ids(self, ids: Tensor) -> Tensor:
        """What the member reads: a row of the target that it has not, which no token has, as its own last row.

        Only a target that was never trained writes such a row. What it writes next does not depend on this.
        """
        return ids if self.own >= self.width else ids.clamp(max=self.own - 1)

    def logits(self, logits: Tensor) -> Tensor:
        """`[N, V]` of the member's `[N, own]`, -inf where it says nothing; may be the same memory, changed."""
        if self.own == self.width:
            logits[..., self.said :] = -torch.inf
            return logits
        whole = logits.new_full((*logits.shape[:-1], self.width), -torch.inf)
        whole[..., : self.said] = logits[..., : self.said]
        return whole


class PaddedForward:
    """A member's forward over the pool's vocabulary; see `ModelForward`.

    Args:
        inner: over the member's own.
        rows: how one is the other.
    """

    # Captured functions are captured of this one.
    whole_draft = None
    whole_verify = None

    def __init__(self, inner: FusedForward | ModuleForward, rows: TokenRows) -> None:
        self._inner = inner
        self._rows = rows

    @property
    def name(self) -> str:
        """As of the member's forward."""
        return self._inner.name

    @property
    def kv_shape(self) -> KVShape:
        """What the cache must hold of one token."""
        return self._inner.kv_shape

    def slot_cache(self, *, limit_bytes: int | None = None) -> SlotCache:
        """See `ModelForward`."""
        return self._inner.slot_cache(limit_bytes=limit_bytes)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        """See `ModelForward`."""
        return self._rows.logits(self._inner(self._rows.ids(ids), placement, cache, keep))

    @torch.inference_mode()
    def with_states(
        self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """See `ModelForward`."""
        logits, states = self._inner.with_states(self._rows.ids(ids), placement, cache, keep)
        return self._rows.logits(logits), states

    @torch.inference_mode()
    def on_inputs(
        self, inputs: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """See `ModuleForward`."""
        logits, states = self._inner.on_inputs(inputs, placement, cache, keep)
        return self._rows.logits(logits), states


def over_rows(
    forward: FusedForward | ModuleForward, rows: TokenRows | None
) -> FusedForward | ModuleForward | PaddedForward:
    """A forward over the pool's vocabulary; the same where that is the member's own."""
    return forward if rows is None else PaddedForward(forward, rows)
