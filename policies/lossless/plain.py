"""The target alone: what every speed-up is measured against."""

from typing import ClassVar

from ...decoding.contract import Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About


class Plain:
    """Plain decoding: one forward of the target per token."""

    about: ClassVar[About] = About(lossless=True, target_alone=True, by_pending=True)

    def __init__(self, pool: Pool) -> None:
        self._step = Verify(pool.target)

    def decide(self, seen: Observation) -> Step:
        """Always the target."""
        return self._step

    def learn(self, outcome: Outcome) -> None:
        """Nothing to learn."""
