"""Training of small pools of models from generated text and the standard library, on a CPU.

May import torch, transformers and the pool; nothing outside this folder needs it.
"""

from .agreement import Agreement, agreement
from .pipeline import train_pool
from .recipe import Recipe, Schedule, Shape, tiny_recipe

__all__ = [
    "Agreement",
    "Recipe",
    "Schedule",
    "Shape",
    "agreement",
    "tiny_recipe",
    "train_pool",
]
