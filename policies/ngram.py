"""Prompt lookup in front of the target: no drafting model at all (see `lookup`)."""

from .chain import Chain
from .contract import Outcome, Step
from .observation import Observation
from .pool import Pool


class Ngram:
    """Draft by copying from the prompt and the answer so far; plain decoding where nothing matches.

    Args:
        pool: must hold a model-free member.
        tokens: longest copy, >= 1.

    Raises:
        ValueError: no model-free member, or `tokens` below 1.
    """

    def __init__(self, pool: Pool, *, tokens: int = 8) -> None:
        free = [member.name for member in pool.members if member.model_free]
        if not free:
            raise ValueError(f"policy ngram needs a model-free member in the pool; it has {', '.join(pool.names)}")
        self._chain = Chain(pool, f"{free[0]}:{tokens}/{pool.target}")

    def decide(self, seen: Observation) -> Step:
        """As a chain of two levels."""
        return self._chain.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """Nothing to learn."""
