"""Prompt lookup in front of a drafting model: copy where something matches, else let the model draft.

The usual pairing of prompt lookup (Saxena 2023) with a drafter. Unlike the chain `ngram:8/draft:4/target`, the model
neither judges what was copied nor runs where something was.
"""

from ...decoding.contract import Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.default_members import drafter_of, lookup_member
from ..parts.drafted_blocks import DraftedBlocks


class NgramFront(DraftedBlocks):
    """Try prompt lookup first; the drafting model writes where nothing matches.

    Args:
        pool: must hold a model-free member.
        draft: the drafting model; default the smallest.
        tokens: longest copy, >= 1.
        window: tokens the model drafts, >= 1.

    Raises:
        ValueError: no model-free member, no model below the target, or an option out of range.
    """

    about = About(
        paper="prompt lookup, Saxena 2023",
        lossless=True,
        members="a model-free member and a model below the target",
    )

    def __init__(self, pool: Pool, *, draft: str | None = None, tokens: int = 8, window: int = 4) -> None:
        lookup, drafter = lookup_member(pool, "ngram-model"), drafter_of(pool, draft)
        if pool.is_model_free(drafter):
            raise ValueError(f"draft must be a model, got {drafter!r}, which is model-free")
        super().__init__(Draft(lookup, tokens), Verify(pool.target))
        self._draft_instead = Draft(drafter, window)
        self.most_pending = max(tokens, window)

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """The model drafts where the copy came back empty."""
        return self._draft_instead if last.step is self._draft and not last.num_drafted else self._verify
