"""What a forward of one pool member looks like to those who run it."""

from typing import Protocol

from torch import Tensor

from ..graphs.captured_draft import CapturedDraft
from ..graphs.captured_verify import CapturedVerify
from ..kv.member_kv import KVShape, MemberKV
from ..kv.placement import Placement
from ..kv.slot_cache import SlotCache


class ModelForward(Protocol):
    """One model over its cache. Letters: T new tokens of all requests, N of them kept, V vocabulary."""

    @property
    def name(self) -> str:
        """`fused`, `modules` or `graphs`."""

    @property
    def kv_shape(self) -> KVShape:
        """What the cache must hold of one token."""

    @property
    def whole_draft(self) -> CapturedDraft | None:
        """Draft loops that run as one; None where each forward is called by itself."""

    @property
    def whole_verify(self) -> CapturedVerify | None:
        """Verifications that run as one, their verdicts among them; None likewise."""

    def slot_cache(self, *, limit_bytes: int | None = None) -> SlotCache:
        """A cache whose slots are positions, as this forward runs best over; empty.

        Args:
            limit_bytes: of all caches on the device together; without one it may take more than it needs, so as to
                grow seldom.
        """

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

    def with_states(
        self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """As a call, and the last hidden states `[T, H]` of all tokens, after the final norm. Letter: H hidden size.

        Raises:
            ValueError: a forward that does not give them.
        """
