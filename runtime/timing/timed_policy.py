"""Measures what a policy's own thinking costs."""

from time import perf_counter

from ...decoding.contract import Outcome, Step
from ...decoding.observation import Observation
from ...decoding.policy import Policy


class TimedPolicy:
    """Passes on to a policy, and adds up the seconds it takes.

    Not by `Clock`, which waits for devices: that wait is not the policy's. What a policy asks of a pending token (its
    signal) is computed when asked for, and counts.

    Attributes:
        wrapped: the policy.
        seconds: in `decide` and `learn` so far.
    """

    __slots__ = ("seconds", "wrapped")

    def __init__(self, policy: Policy) -> None:
        self.wrapped = policy
        self.seconds = 0.0

    def decide(self, seen: Observation) -> Step:
        """What the policy says."""
        start_s = perf_counter()
        step = self.wrapped.decide(seen)
        self.seconds += perf_counter() - start_s
        return step

    def learn(self, outcome: Outcome) -> None:
        """Tell the policy."""
        start_s = perf_counter()
        self.wrapped.learn(outcome)
        self.seconds += perf_counter() - start_s
