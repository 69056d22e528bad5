"""What a policy's own thinking costs, step by step."""

from time import perf_counter, thread_time

from ..decoding.contract import Outcome, Step
from ..decoding.observation import Observation
from ..decoding.policy import Policy


class TimedSteps:
    """Passes on to a policy and keeps the seconds of what it does.

    Attributes:
        deciding_s, learning_s: of this thread in `decide` and in `learn`, in all: whatever else the machine does adds
            none.
        steps_s: by the wall clock, of each step `decide` and `learn` together, in the order in which steps finished.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._decided_s: dict[str, float] = {}
        self.deciding_s = self.learning_s = 0.0
        self.steps_s: list[float] = []

    def decide(self, seen: Observation) -> Step:
        """What the policy says."""
        thread_s, start_s = thread_time(), perf_counter()
        step = self._policy.decide(seen)
        self._decided_s[seen.request_id] = perf_counter() - start_s
        self.deciding_s += thread_time() - thread_s
        return step

    def learn(self, outcome: Outcome) -> None:
        """Tell the policy."""
        thread_s, start_s = thread_time(), perf_counter()
        self._policy.learn(outcome)
        self.steps_s.append(perf_counter() - start_s + self._decided_s.pop(outcome.request_id))
        self.learning_s += thread_time() - thread_s
