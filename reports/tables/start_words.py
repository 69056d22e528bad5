"""How requests began, in a word, where it does not go without saying."""

from collections.abc import Mapping
from typing import Any

DEFAULTS = {"imported": "recorded"}  # by kind of recording; `prefill` for all others and for models


def start_words(meta: Mapping[str, Any]) -> str:
    """To stand in a title, a comma before it; empty for the default.

    Args:
        meta: of a comparison or a run log, with `start`; with `kind` where a recording was replayed.
    """
    start = meta.get("start", "")
    return f", start {start}" if start and start != DEFAULTS.get(meta.get("kind", ""), "prefill") else ""
