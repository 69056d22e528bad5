"""What a captured step reads, and where it goes.

Letters: B requests, R rows and Q tokens of a bucket, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kv.member_kv import MemberKV
from ..kv.placement import Placement
from .buckets import MOST_ROW_TOKENS, MOST_TOKENS, Bucket, bucket_of, power_of_two
from .graph_store import GraphStore
from .static_memory import StaticMemory

Noise = NDArray[np.float32]


class Feed(NamedTuple):
    """The tokens a step reads; a cache holds what is before them.

    Attributes:
        request_ids: `[B]` different, in the order of the cache's rows.
        tokens: `[B]` of each, one at least.
    """

    request_ids: Sequence[str]
    tokens: Sequence[Sequence[int]]

    @property
    def counts(self) -> list[int]:
        """`[B]` tokens of each request."""
        return [len(tokens) for tokens in self.tokens]

    def ids(self, device: torch.device) -> Tensor:
        """All tokens, request after request."""
        return torch.from_numpy(np.array([token for tokens in self.tokens for token in tokens])).to(device)


class Placed(NamedTuple):
    """A feed that has its place.

    Attributes:
        memory, bucket: what is captured for it.
        placement: of its tokens.
        rows: `[B]` of the cache.
    """

    memory: StaticMemory
    bucket: Bucket
    placement: Placement
    rows: list[int]


def place(store: GraphStore, cache: MemberKV, feed: Feed, *, further: int = 0) -> Placed | None:
    """Place a feed in a cache that has room for it.

    None, with nothing placed, where that is not captured: in a cache of another kind, or for too many tokens.

    Args:
        store: of the member.
        cache: mutated.
        feed: what is read.
        further: tokens that each request may come to hold beyond it, in the same step.
    """
    memory, counts = store.memory_of(cache), feed.counts
    longest = power_of_two(max(counts))
    if memory is None or longest > MOST_ROW_TOKENS or longest * cache.num_rows > MOST_TOKENS:
        return None
    placement = cache.place(feed.request_ids, counts)
    bucket = bucket_of(placement, cache, further=further)
    assert bucket is not None  # as its tokens are few
    return Placed(memory, bucket, placement, [cache.rows[request_id] for request_id in feed.request_ids])
