"""Every recording of the arena by its name: what it is, and how it is made."""

from collections.abc import Mapping
from dataclasses import dataclass

from .shipped_source import ShippedSource
from .source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One recording.

    Attributes:
        what: one line that says what is special about it.
        source: makes it.
    """

    what: str
    source: Source


def catalogue() -> Mapping[str, Entry]:
    """By name, in the order in which the page lists them."""
    return {
        "pico": Entry(what="the shipped recording", source=ShippedSource(title="pico")),
        "pico-coupled": Entry(what="the shipped recording, sampled", source=ShippedSource(title="pico-coupled")),
    }
