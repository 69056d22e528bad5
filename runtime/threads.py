"""What a run may use of the machine: memory for keys and values, and torch's threads.

Threads are always set, since more than the free cores are far slower than one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from ..base.errors import ArgumentError, check_least, check_within, counted
from ..base.files import num_processors
from ..decoding.prefix_cache import PrefixCacheSize
from .caches import MaskCache, MemberKV
from .forward import ModelForward
from .forward_kinds import CACHES, SHARED_KINDS, CacheKind, SharedKind
from .prefixed_kv import PrefixedKV, PrefixedMaskCache, PrefixedSlotCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How keys and values are kept.

    Raises:
        ArgumentError: an unknown kind of cache, no bytes, or a share out of range.
    """

    cache: CacheKind = "slots"  # `slots` (a slot is a position) or `mask` (append-only with a validity mask)
    # of all members' caches on a device together: one number, or by device (`cuda:0`); None or not named: all it has
    limit_bytes: int | Mapping[str, int] | None = None
    # of `mask`: share of the columns in use that may be dead before they are truncated, in (0, 1]
    dead_share: float = 0.5
    # of each member's prefix cache, whose memory is among `limit_bytes`; None: there is none
    prefixes: PrefixCacheSize | None = None
    # fused forwards attend once to a prefix that all rows share (same except for rounding); `auto`: where faster
    shared_attention: SharedKind = "auto"

    def __post_init__(self) -> None:
        if self.cache not in CACHES:
            raise ArgumentError(f"`cache` must be one of {', '.join(CACHES)}, got {self.cache!r}")
        if self.shared_attention not in SHARED_KINDS:
            known = ", ".join(SHARED_KINDS)
            raise ArgumentError(f"`shared_attention` must be one of {known}, got {self.shared_attention!r}")
        if self.shared_attention != "auto" and self.prefixes is None:
            raise ArgumentError(f"`shared_attention` goes with `prefix_cache`, got {self.shared_attention} without one")
        limits = self.limit_bytes
        for limit in limits.values() if isinstance(limits, Mapping) else () if limits is None else (limits,):
            check_least("`limit_bytes`", limit, 1)
        check_within("`dead_share`", self.dead_share, "(0, 1]")

    def limits(self, devices: Iterable[torch.device]) -> dict[torch.device, int]:
        """Bytes by device, of the pool's devices that have a limit; raises ArgumentError for other devices."""
        named = {str(device): device for device in devices}
        if self.limit_bytes is None:
            return {}
        if not isinstance(self.limit_bytes, Mapping):
            return dict.fromkeys(named.values(), self.limit_bytes)
        for name in self.limit_bytes:
            if name not in named:
                raise ArgumentError(f"`limit_bytes` must name devices of the pool ({', '.join(named)}), got {name!r}")
        return {named[name]: limit for name, limit in self.limit_bytes.items()}

    def make_cache(self, forward: ModelForward) -> MemberKV:
        """An empty cache for a member with this forward."""
        shape, size = forward.kv_shape, self.prefixes
        if size is None:
            return MaskCache(shape, dead_share=self.dead_share) if self.cache == "mask" else forward.slot_cache()
        made: PrefixedKV
        if self.cache == "mask":
            made = PrefixedMaskCache(shape, size, dead_share=self.dead_share)
        else:
            made = PrefixedSlotCache(shape, size)
        made.shared_attention = self.shared_attention
        return made


def use_threads(count: int) -> None:
    """Set torch's threads for this process; raises ArgumentError below 1 or above its processors."""
    check_processors("`threads`", count)
    torch.set_num_threads(count)


def check_processors(name: str, count: int) -> None:
    """Raise ArgumentError, which names `name`, below 1 or above this process's processors."""
    check_least(name, count, 1)
    if count > (most := num_processors()):
        there = f"{'is' if most == 1 else 'are'} {counted(most, 'processor')} to run on"
        raise ArgumentError(f"{name} must be <= {most}, as there {there}, got {count}")
