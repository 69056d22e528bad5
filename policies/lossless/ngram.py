"""Prompt lookup in front of the target: no drafting model at all (`decoding.prompt_lookup`)."""

from ...decoding.contract import Draft, Verify
from ...decoding.pool import Pool
from ..about import About
from ..parts.default_members import lookup_member
from ..parts.drafted_blocks import FixedBlocks


class Ngram(FixedBlocks):
    """Draft by copying from the prompt and the answer so far; plain decoding where nothing matches.

    Args:
        pool: must hold a model-free member.
        tokens: longest copy, >= 1.

    Raises:
        ValueError: no model-free member, or `tokens` below 1.
    """

    about = About(paper="prompt lookup, Saxena 2023", lossless=True, members="a model-free member", by_pending=True)

    def __init__(self, pool: Pool, *, tokens: int = 8) -> None:
        super().__init__(Draft(lookup_member(pool, "ngram"), tokens), Verify(pool.target))
