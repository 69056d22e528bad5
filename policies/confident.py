"""Two levels; the draft ends at the first token its drafter is unsure of.

The confidence threshold of transformers' assisted generation (`assistant_confidence_threshold`, default 0.4 there).
"""

from .chain import Chain
from .contract import Outcome, Step
from .observation import Observation
from .pool import Pool
from .smallest_model import smallest_model
from .stops import ConfidenceBelow


class Confident:
    """Draft until the drafter's probability falls below a threshold, then verify.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        below: probability that ends a draft, 0 to 1; the token stays in the draft.
        most: longest draft, >= 1.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    def __init__(self, pool: Pool, *, draft: str | None = None, below: float = 0.4, most: int = 12) -> None:
        drafter = smallest_model(pool) if draft is None else draft
        self._chain = Chain(pool, f"{drafter}:{most}/{pool.target}", stop=ConfidenceBelow(below))

    def decide(self, seen: Observation) -> Step:
        """As a chain of two levels whose drafts end early."""
        return self._chain.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """Nothing to learn."""
