"""Word lists and templates of the generated texts, in the TOML files of this folder."""

import random
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def text_data(name: str) -> Mapping[str, Any]:
    """What `NAME.toml` holds; the comments in it say what that is."""
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def draw_slots(slots: Mapping[str, Any], words: Mapping[str, Any], rng: random.Random) -> dict[str, str]:
    """What fills each slot, drawn in their order: one of the list of `words` it names, or a number of its range."""
    return {
        slot: rng.choice(words[kind]) if isinstance(kind, str) else str(rng.randint(*kind))
        for slot, kind in slots.items()
    }
