"""Batched forwards of requests of any lengths, each over its own part of a member's cache.

May import torch, transformers and `runtime.kv`; knows nothing of policies or sessions.
"""

from .forward_choice import ForwardKind, choose_forward
from .fused_forward import FusedForward
from .fused_support import fused_supports
from .model_forward import ModelForward
from .module_forward import ModuleForward

__all__ = ["ForwardKind", "FusedForward", "ModelForward", "ModuleForward", "choose_forward", "fused_supports"]
