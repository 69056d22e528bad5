"""Batched forwards of requests of any lengths, each over its own part of a member's cache.

May import torch, transformers and `runtime.kv`; knows nothing of policies or sessions.
"""

from .choose import ForwardKind, choose_forward
from .fused_forward import FusedForward
from .model_forward import ModelForward
from .module_forward import ModuleForward
from .support import fused_supports

__all__ = ["ForwardKind", "FusedForward", "ModelForward", "ModuleForward", "choose_forward", "fused_supports"]
