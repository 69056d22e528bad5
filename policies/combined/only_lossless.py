"""Another policy, refused at its first step that could commit other text than the target's."""

from ...decoding.contract import Commit, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.policy import Policy
from ..about import About


class OnlyLossless:
    """Passes a policy's steps on while they are lossless.

    For policies that nobody vouches for: what they do shows when they do it. A lossy rule below the target is no such
    step, since the target judges what it kept.

    Args:
        policy: any but an oracle.
        about: what it says of itself.
    """

    def __init__(self, policy: Policy, about: About | None = None) -> None:
        self._policy = policy
        self.about = about
        self.named_tags: frozenset[str] = getattr(policy, "named_tags", frozenset())

    def decide(self, seen: Observation) -> Step:
        """The policy's step; raises ValueError if it is a Commit, or the target would judge by a lossy rule."""
        step = self._policy.decide(seen)
        if isinstance(step, Commit) or (
            isinstance(step, Verify) and step.model == seen.pool.target and not step.rule.lossless
        ):
            raise ValueError(f"{step} is lossy, and only lossless policies were asked for")
        return step

    def learn(self, outcome: Outcome) -> None:
        """The policy learns."""
        self._policy.learn(outcome)
