"""A policy that is looked at while it decodes one request of the toy models."""

from paceline.decoding.seen import Start
from paceline.policies.check import ToyWorld, check_pool

from ...decoding.script import run

POOL = check_pool()


class Watched:
    """Keeps every step of a policy with what came of it, and the text it saw before."""

    def __init__(self, policy):
        self.policy, self.steps, self.outcomes = policy, [], []

    def decide(self, seen):
        step = self.policy.decide(seen)
        self.steps.append(step)
        return step

    def learn(self, outcome):
        self.outcomes.append(outcome)
        self.policy.learn(outcome)


def watched(policy, *, budget=60, start=Start.draft, **world):
    """All of the text is the policy's own unless it starts with a prefill."""
    watch = Watched(policy)
    session = run(watch, budget=budget, world=ToyWorld(POOL, **world), start=start)
    return watch, session


def blocks_of(watch):
    """The outcomes of a request, cut after every step that committed something."""
    blocks, block = [], []
    for outcome in watch.outcomes:
        block.append(outcome)
        if outcome.num_emitted:
            blocks.append(block)
            block = []
    assert blocks
    assert not block
    return blocks
