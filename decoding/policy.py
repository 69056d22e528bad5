"""The one question a policy answers about one request: what next?

Two verbs, `decide` and `learn`. Both worlds (sim and runtime) call them through the same loop.
"""

from typing import Protocol

from .contract import Outcome, Step
from .observation import Observation


class Policy(Protocol):
    """What a policy is. Built once per run as `MyPolicy(pool, **options)`; one object serves all requests."""

    def decide(self, seen: Observation) -> Step:
        """What next, for this request. `seen` is a live view, valid during the call only."""
        ...

    def learn(self, outcome: Outcome) -> None:
        """What came of a step, in the order the steps finished."""
        ...
