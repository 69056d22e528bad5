"""What a forward of one pool member looks like to those who run it."""

from typing import Protocol

from torch import Tensor

from ..kv.member_kv import KVShape, MemberKV
from ..kv.placement import Placement


class ModelForward(Protocol):
    """One model over its cache. Letters: T new tokens of all requests, N of them kept, V vocabulary."""

    @property
    def name(self) -> str:
        """`fused` or `modules`."""

    @property
    def kv_shape(self) -> KVShape:
        """What the cache must hold of one token."""

    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        """Feed tokens, writing their keys and values to the cache.

        Args:
            ids: `[T]` new tokens, request after request.
            placement: where they go, just made by `cache.place`; it serves one forward.
            cache: of shape `kv_shape`; mutated.
            keep: `[N]` indices into the T tokens, or a slice of them.

        Returns:
            `[N, V]` logits after the kept tokens.
        """
