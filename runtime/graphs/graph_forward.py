"""A model's forwards as captured functions, one for each bucket of rows, tokens and slots.

Letters: T new tokens of all requests, N of them kept, R rows and Q tokens of a bucket, V vocabulary.
"""

import torch
from torch import Tensor

from ..kv.member_kv import KVShape, MemberKV
from ..kv.placement import Placement
from .buckets import bucket_of
from .capture import Capture, Run
from .captured_draft import CapturedDraft
from .captured_verify import CapturedVerify
from .graph_store import Forward, GraphStore
from .static_cache import StaticSlotCache
from .static_inputs import StaticInputs


class GraphForward:
    """Another forward, captured; see `ModelForward`.

    Long feeds (prompts) and caches of another kind run as that forward does.

    Args:
        inner: what is captured.
        capture: how.
        vocab_size: V.
        context_tokens: positions there are, >= 1.

    Attributes:
        whole_draft, whole_verify: see `ModelForward`.
        store: what is captured, and why something is not.
    """

    name = "graphs"

    def __init__(self, inner: Forward, capture: Capture, *, vocab_size: int, context_tokens: int) -> None:
        self.store = GraphStore(inner, capture, vocab_size=vocab_size, context_tokens=context_tokens)
        self.whole_draft: CapturedDraft | None = CapturedDraft(self.store)
        self.whole_verify: CapturedVerify | None = CapturedVerify(self.store)
        self._inner = inner

    @property
    def kv_shape(self) -> KVShape:
        """What the cache must hold of one token."""
        return self._inner.kv_shape

    def slot_cache(self, *, limit_bytes: int | None = None) -> StaticSlotCache:
        """See `ModelForward`; over memory that captured functions refer to."""
        return self.store.new_cache(limit_bytes)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        """See `ModelForward`."""
        memory = self.store.memory_of(cache)
        bucket = None if memory is None else bucket_of(placement, cache)
        if memory is None or bucket is None:
            return self._inner(ids, placement, cache, keep)
        num_logits = bucket.rows * bucket.tokens
        captured = self.store.captured(memory, "forward", bucket, self._run_over, num_logits=num_logits)
        at = captured.inputs.fill(ids, placement)
        (logits,) = captured.replay()
        # A copy: the next replay of anything writes its results there.
        return logits.index_select(0, at[keep])

    def with_states(
        self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """See `ModelForward`; a captured forward hands out logits alone."""
        raise ValueError("CUDA graphs give no hidden states")

    def _run_over(self, inputs: StaticInputs) -> Run:
        """Logits `[R Q, V]` of all tokens in the buffers."""

        def run() -> tuple[Tensor, ...]:
            return (self._inner(inputs.ids, inputs.first(), inputs.cache(), slice(None)),)

        return run
