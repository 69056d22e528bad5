"""Prompt lookup in front of the target: no drafting model at all (see `lookup`)."""

from typing import ClassVar

from ...decoding.contract import Outcome, Step
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.default_members import lookup_member
from .chain import Chain


class Ngram:
    """Draft by copying from the prompt and the answer so far; plain decoding where nothing matches.

    Args:
        pool: must hold a model-free member.
        tokens: longest copy, >= 1.

    Attributes:
        most_pending: tokens it may have pending, at most.

    Raises:
        ValueError: no model-free member, or `tokens` below 1.
    """

    about: ClassVar[About] = About(paper="prompt lookup, Saxena 2023", lossless=True, members="a model-free member")

    def __init__(self, pool: Pool, *, tokens: int = 8) -> None:
        self._chain = Chain(pool, f"{lookup_member(pool, 'ngram')}:{tokens}/{pool.target}")
        self.most_pending = tokens

    def decide(self, seen: Observation) -> Step:
        """As a chain of two levels."""
        return self._chain.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """Nothing to learn."""
