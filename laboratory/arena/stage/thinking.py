"""How long a policy thinks, on this host, while it is played."""

from statistics import median
from time import perf_counter_ns

from ....decoding.contract import Outcome, Step
from ....decoding.observation import Observation
from ....decoding.policy import Policy
from ....policies.about import About, about_of


class ThinkingTimed:
    """Passes on to a policy and keeps how long it takes for each step, `decide` and `learn` together.

    Args:
        policy: any.

    Attributes:
        about: what the policy says of itself.
    """

    def __init__(self, policy: Policy) -> None:
        self.about: About | None = about_of(policy)
        self._policy = policy
        self._decided_ns: dict[str, int] = {}
        self._steps_ns: list[int] = []

    def decide(self, seen: Observation) -> Step:
        """What the policy says."""
        start_ns = perf_counter_ns()
        step = self._policy.decide(seen)
        self._decided_ns[seen.request_id] = perf_counter_ns() - start_ns
        return step

    def learn(self, outcome: Outcome) -> None:
        """Tell the policy."""
        start_ns = perf_counter_ns()
        self._policy.learn(outcome)
        taken_ns = perf_counter_ns() - start_ns
        self._steps_ns.append(taken_ns + self._decided_ns.pop(outcome.request_id, 0))

    @property
    def think_us(self) -> float | None:
        """Microseconds of a step in the median; None before the first."""
        return median(self._steps_ns) / 1e3 if self._steps_ns else None
