"""Measures what a policy's own thinking costs."""

from time import perf_counter

from ...decoding.contract import Outcome, Step
from ...decoding.observation import Observation
from ...policies.step_watch import WatchedPolicy


class TimedPolicy(WatchedPolicy):
    """Passes on to a policy, notes its steps, and adds up the seconds it takes.

    Not by `Clock`, which waits for devices: that wait is not the policy's. What a policy asks of a pending token (its
    signal) is computed when asked for, and counts.

    Attributes:
        seconds: in `decide` and `learn` so far.
        decisions: steps it was asked for so far.
    """

    seconds = 0.0
    decisions = 0

    def decide(self, seen: Observation) -> Step:
        """The policy's step."""
        start_s = perf_counter()
        step = self.wrapped.decide(seen)
        self.decisions += 1
        self.seconds += perf_counter() - start_s
        self.watch.note(step)
        return step

    def learn(self, outcome: Outcome) -> None:
        """The policy learns."""
        start_s = perf_counter()
        self.wrapped.learn(outcome)
        self.seconds += perf_counter() - start_s
