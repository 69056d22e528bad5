"""Shapes of models that people serve, as their published configs give them: `presets.toml`."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from .decoder import Decoder


@cache
def presets() -> Mapping[str, Decoder]:
    """Every known model by name, as weights are published; vision towers are left out."""
    shapes = tomllib.loads(files(__package__).joinpath("presets.toml").read_text(encoding="utf-8"))
    return {name: Decoder(**shape) for name, shape in shapes.items()}
