"""Service dialogues of several turns; the domain `dialogue`."""

import random
from collections.abc import Mapping
from typing import Any

from .item import Item
from .text_data import draw_slots, text_data


def make_dialogue(rng: random.Random) -> Item:
    """Draw one dialogue; the prompt ends after the name of the next speaker."""
    dialogues = text_data("dialogue")
    scene = rng.choice(dialogues["scenes"])
    slots = _draw_slots(dialogues, rng)
    lines = []
    for position, wordings in enumerate(scene["turns"]):
        speaker = scene["speakers"][position % 2].format(**slots)
        turn = rng.choice(wordings).format(**slots)
        lines.append(f"{speaker}: {turn[0].upper()}{turn[1:]}")
    first_open = rng.randint(2, 5)
    speaker, _, rest = lines[first_open].partition(":")
    opening = "\n".join([f"Dialogue: {scene['title']}", *lines[:first_open], f"{speaker}:"])
    return Item(tag="dialogue", prompt=opening, completion="\n".join([rest, *lines[first_open + 1 :]]))


def _draw_slots(dialogues: Mapping[str, Any], rng: random.Random) -> dict[str, str]:
    """What fills each slot of the turns."""
    words = {**text_data("words"), **dialogues}
    pairs = {}
    for slot, kind in dialogues["pairs"].items():
        pairs[slot], pairs[f"{slot}2"] = rng.sample(words[kind], 2)
    return pairs | draw_slots(dialogues["slots"], words, rng)
