"""Measures what a policy's own thinking costs."""

from time import perf_counter

from ...decoding.contract import Outcome, Step
from ...decoding.observation import Observation
from ...decoding.policy import Policy
from ...policies.step_watch import StepWatch


class TimedPolicy:
    """Passes on to a policy, adds up the seconds it takes, and notes its steps.

    Not by `Clock`, which waits for devices: that wait is not the policy's. What a policy asks of a pending token (its
    signal) is computed when asked for, and counts.

    Args:
        policy: any.
        watch: told of every step.

    Attributes:
        wrapped: the policy.
        seconds: in `decide` and `learn` so far.
    """

    __slots__ = ("_watch", "seconds", "wrapped")

    def __init__(self, policy: Policy, watch: StepWatch) -> None:
        self.wrapped = policy
        self._watch = watch
        self.seconds = 0.0

    def decide(self, seen: Observation) -> Step:
        """What the policy says."""
        start_s = perf_counter()
        step = self.wrapped.decide(seen)
        self.seconds += perf_counter() - start_s
        self._watch.note(step)
        return step

    def learn(self, outcome: Outcome) -> None:
        """Tell the policy."""
        start_s = perf_counter()
        self.wrapped.learn(outcome)
        self.seconds += perf_counter() - start_s
