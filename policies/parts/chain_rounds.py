"""Chains to choose among, one for each round of each request, and what every round brought."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...decoding.contract import Outcome, Policy, Step
from ...decoding.observation import Observation
from .member_seconds import MemberSeconds


class PlayedRound(NamedTuple):
    """One finished round: all between two commits by the target.

    Attributes:
        arm: index of the chain that was played.
        tokens: committed, >= 1.
        seconds: what its steps cost the request, in the unit of the costs that were stated, else seconds.
    """

    arm: int
    tokens: int
    seconds: float


class ChainRounds:
    """Plays a chosen chain until the target commits.

    Args:
        chains: the arms; any policies that learn nothing.
        seconds: charges steps, and takes them in.
    """

    def __init__(self, chains: Sequence[Policy], seconds: MemberSeconds) -> None:
        self._chains = chains
        self._seconds = seconds
        self._arms: dict[str, int] = {}
        self._spent: dict[str, float] = {}

    def decide(self, seen: Observation, pick: Callable[[], int]) -> Step:
        """The next step of the request's round; `pick` is asked for an arm where a round begins."""
        request_id = seen.request_id
        arm = self._arms.get(request_id)
        if arm is None:
            arm = self._arms[request_id] = pick()
        return self._chains[arm].decide(seen)

    def learn(self, outcome: Outcome) -> PlayedRound | None:
        """Take a step in; the round, if the step ended it."""
        request_id = outcome.request_id
        seconds = self._spent.get(request_id, 0.0) + self._seconds.charge(outcome)
        if not outcome.num_emitted:
            self._spent[request_id] = seconds
            return None
        self._spent.pop(request_id, None)
        return PlayedRound(self._arms.pop(request_id), outcome.num_emitted, seconds)
