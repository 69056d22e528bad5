"""How much of what a prefix cache was asked for it had."""

from typing import NamedTuple


class PrefixHits(NamedTuple):
    """Counts over the texts that were opened, those of resumed requests left out.

    What `drop_units` took from a hit counts as asked and not found.
    """

    asked_blocks: int  # full blocks of the texts
    found_blocks: int
    asked_tokens: int  # of the texts, their last, partial blocks included
    found_tokens: int
