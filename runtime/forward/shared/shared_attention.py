"""Whether attention over a common prefix is computed once for all rows of a forward: where that is quicker, here.

Which of both ways is quicker depends on the machine, the model's heads, rows, queries and lengths, so it is timed at
the first forward of each kind, on the very tensors of that forward, and remembered.

Letters as in `two_parts`; P slots that a forward reads out of a prefix cache, of which C are common.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from ...kv.member_kv import KVShape, MemberKV
from ...kv.placement import Placement, Prefix
from ..known_choices import KnownChoices
from .two_parts import KeysValues, attend_in_two_parts

ALONE, SHARED = "alone", "shared"
_RACES = 3


class ReadsCommon(Protocol):
    """A cache that has the keys and values of a common prefix once."""

    def read_common(self, layer: int, prefix: Prefix) -> KeysValues:
        """Two of `[H, C, D]`."""


class SharedAttention:
    """Attention of one model's forwards. Mutated by `attend`, which remembers what was quicker.

    Args:
        shape: of the model's caches.
        groups: query heads of each key head.
        scale: of scores.
        known: choices that were made before.
    """

    def __init__(self, shape: KVShape, *, groups: int, scale: float, known: KnownChoices) -> None:
        dtype = str(shape.dtype).removeprefix("torch.")
        self._what = f"{shape.num_heads}x{groups} heads of {shape.head_width}, {dtype} on {shape.device.type}"
        self._scale = scale
        self._known = known
        self._chosen: dict[tuple[int, ...], bool] = {}

    def attend(
        self, layer: int, queries: Tensor, placement: Placement, cache: MemberKV, mask: Tensor | None, *, narrow: bool
    ) -> Tensor:
        """`[B, H, Q, D]` of queries of that shape, whose keys and values the cache holds.

        Args:
            layer: of the cache.
            queries: query heads of the same keys side by side as more queries.
            placement: of the forward.
            cache: that made it.
            mask: `[B, 1, Q, S]` added to scores; None looks at all.
            narrow: whether the mask may keep queries from what stood before their rows' new tokens (a sliding window).
        """

        def alone() -> Tensor:
            keys, values = cache.read(layer, placement)
            return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=self._scale)

        prefix = placement.prefix
        if prefix is None or not prefix.num_common or len(placement.counts) == 1 or prefix.attention == "off":
            return alone()

        def shared() -> Tensor:
            keys, values = cache.read(layer, self._rest(placement, prefix))
            common = prefix.num_common
            return attend_in_two_parts(
                queries,
                cast(ReadsCommon, cache).read_common(layer, prefix),
                (keys, values),
                common_mask=mask[..., :common] if mask is not None and narrow else None,
                own_mask=None if mask is None else mask[..., common:],
                scale=self._scale,
            )

        if prefix.attention == "on" or self._pays(queries, placement, prefix, alone, shared):
            return shared()
        return alone()

    def _rest(self, placement: Placement, prefix: Prefix) -> Placement:
        """What is left of a placement without the common slots."""
        common = prefix.num_common
        if prefix.num_slots == common:
            return prefix.own
        after = prefix._replace(slots=prefix.slots[:, common:], num_common=0)
        return placement._replace(prefix=after, num_slots=placement.num_slots - common)

    def _pays(
        self,
        queries: Tensor,
        placement: Placement,
        prefix: Prefix,
        alone: Callable[[], Tensor],
        shared: Callable[[], Tensor],
    ) -> bool:
        """Whether sharing is quicker for forwards like this one."""
        sizes = (len(queries), queries.shape[2], prefix.num_common, placement.num_slots - prefix.num_common)
        # Within a power of two all go by the first that came.
        like = tuple(size.bit_length() for size in sizes)
        found = self._chosen.get(like)
        if found is None:
            rows, count, common, own = (2**size - 1 for size in like)
            what = f"attention of up to {rows} rows of {count} over {common} shared and {own}: {self._what}"
            known = self._known.get(what, 1)
            if not known:
                known = [SHARED if _seconds(shared, queries) < _seconds(alone, queries) else ALONE]
                self._known.note(what, known)
            found = self._chosen[like] = known[0] == SHARED
        return found


def _seconds(attend: Callable[[], Tensor], queries: Tensor) -> float:
    """What it takes, as the median of a few."""
    taken = []
    for _ in range(_RACES + 1):
        start_s = perf_counter()
        attend()
        if queries.device.type == "cuda":
            torch.cuda.synchronize(queries.device)
        taken.append(perf_counter() - start_s)
    return median(taken[1:])
