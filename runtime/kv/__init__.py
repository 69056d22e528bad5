"""Keys and values of running requests: where a forward writes, what it may look at, how a request is rolled back.

May import torch; knows nothing of policies, sessions or models beyond the shape of their caches.
"""

from .mask_cache import MaskCache
from .member_kv import KVShape, MemberKV
from .placement import Placement
from .slot_cache import SlotCache

__all__ = ["KVShape", "MaskCache", "MemberKV", "Placement", "SlotCache"]
