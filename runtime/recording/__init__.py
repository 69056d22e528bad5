"""Recording: every model's view of every context that a policy may ask about, request by request.

May import torch, transformers, traces and, of the runtime, kv, forward, pools, views, sampling, timing; knows nothing
of decoding.
"""

from .finished_requests import Parts
from .recorder import record
from .request_trie import RequestRecorder, TrieOptions
from .tree_forward import TreeForward

__all__ = ["Parts", "RequestRecorder", "TreeForward", "TrieOptions", "record"]
