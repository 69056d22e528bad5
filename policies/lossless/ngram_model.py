"""Prompt lookup in front of a drafting model: copy where something matches, else let the model draft.

The usual pairing of prompt lookup (Saxena 2023) with a drafter. Unlike the chain `ngram:8/draft:4/target`, the model
neither judges what was copied nor runs where something was.
"""

from typing import ClassVar

from ...decoding.contract import Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.default_members import drafter_of, lookup_member
from .chain import found_nothing


class NgramFront:
    """Try prompt lookup first; the drafting model writes where nothing matches.

    Args:
        pool: must hold a model-free member.
        draft: the drafting model; default the smallest.
        tokens: longest copy, >= 1.
        window: tokens the model drafts, >= 1.

    Attributes:
        most_pending: tokens it may have pending, at most.

    Raises:
        ValueError: no model-free member, no model below the target, or an option out of range.
    """

    about: ClassVar[About] = About(
        paper="prompt lookup, Saxena 2023",
        lossless=True,
        members="a model-free member and a model below the target",
    )

    def __init__(self, pool: Pool, *, draft: str | None = None, tokens: int = 8, window: int = 4) -> None:
        lookup, drafter = lookup_member(pool, "ngram-model"), drafter_of(pool, draft)
        if pool.is_model_free(drafter):
            raise ValueError(f"draft must be a model, got {drafter!r}, which is model-free")
        self._look_up = Draft(lookup, tokens)
        self._draft = Draft(drafter, window)
        self._verify = Verify(pool.target)
        self.most_pending = max(tokens, window)

    def decide(self, seen: Observation) -> Step:
        """Copy, or draft where the copy came back empty, then verify."""
        if seen.num_pending:
            return self._verify
        last = seen.last
        if not found_nothing(last):
            return self._look_up
        assert last is not None
        return self._draft if last.step is self._look_up else self._verify

    def learn(self, outcome: Outcome) -> None:
        """Nothing to learn."""
