"""Shapes of models for cost models: from Hugging Face configs, and presets by name.

Needs the standard library only; loads no weights and asks no hub.
"""

from .decoder import Decoder
from .given import given_shapes
from .heads import HEADS
from .hub_config import read_hub_config
from .named import Named, named_shapes, preset_names
from .presets import presets

__all__ = [
    "HEADS",
    "Decoder",
    "Named",
    "given_shapes",
    "named_shapes",
    "preset_names",
    "presets",
    "read_hub_config",
]
