"""How a token is chosen from logits: truncated distributions, and rejection sampling that is lossless level by level.

Pure functions over torch tensors and a source of chance; knows no model, session or cache. (`runtime.noise` holds the
noise of coupled sampling.)
"""

from .chance import Chance, SeededChance
from .rejection import acceptance, judge, probabilities, residual
from .truncation import truncated

__all__ = ["Chance", "SeededChance", "acceptance", "judge", "probabilities", "residual", "truncated"]
