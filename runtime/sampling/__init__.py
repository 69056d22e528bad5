"""How a token is chosen from logits: truncated distributions, and rejection sampling that is lossless level by level.

What is exported is pure functions over torch tensors and a source of chance. `sampler`, which puts them together for a
run, may import runtime.noise, runtime.state and policies.rules; nothing here knows a model or a cache.
"""

from .chance import Chance, SeededChance
from .rejection import acceptance, judge, probabilities, residual
from .truncation import truncated

__all__ = ["Chance", "SeededChance", "acceptance", "judge", "probabilities", "residual", "truncated"]
