"""Word lists and templates of the generated texts, in the TOML files of this folder."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def text_data(name: str) -> Mapping[str, Any]:
    """What `NAME.toml` holds; the comments in it say what that is."""
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
