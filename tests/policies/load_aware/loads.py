"""A target whose verification is free for few tokens and costs by the token for many, and what policies did over it."""

from paceline.policies import Draft
from paceline.sim import TableCost
from paceline.traces.meta import CostTable

FREE_TOKENS = 64  # that a forward of `compute_bound` takes at the price of one


def compute_bound(*, draft_s=0.02, target_s=1.0):
    """Forwards take one price up to 64 new tokens, and in proportion to them beyond, as on a device."""
    widths = (1, FREE_TOKENS, 64 * FREE_TOKENS)
    seconds = {"draft": draft_s, "target": target_s}
    tables = {name: CostTable(new_tokens=widths, seconds=(s, s, 64 * s)) for name, s in seconds.items()}
    return TableCost("compute-bound", tables)


class Rounds:
    """Passes on to a policy, and keeps how each round began: requests that ran, and tokens asked for (0: none)."""

    def __init__(self, policy):
        self.policy = policy
        self.begun = []

    def decide(self, seen):
        begins = seen.num_pending == 0 and (seen.last is None or seen.last.num_emitted > 0)
        num_running = seen.load.num_running
        step = self.policy.decide(seen)
        if begins:
            self.begun.append((num_running, step.tokens if isinstance(step, Draft) else 0))
        return step

    def learn(self, outcome):
        self.policy.learn(outcome)
