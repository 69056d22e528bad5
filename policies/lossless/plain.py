"""The target alone: what every speed-up is measured against."""

from typing import ClassVar

from ..about import About
from ..contract import Outcome, Step, Verify
from ..observation import Observation
from ..pool import Pool


class Plain:
    """Plain decoding: one forward of the target per token."""

    about: ClassVar[About] = About(lossless=True)

    def __init__(self, pool: Pool) -> None:
        self._step = Verify(pool.target)

    def decide(self, seen: Observation) -> Step:
        """Always the target."""
        return self._step

    def learn(self, outcome: Outcome) -> None:
        """Nothing to learn."""
