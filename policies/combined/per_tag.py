"""A policy per task tag: what pays for code need not pay for dialogue."""

from ...decoding.contract import Outcome, Step
from ...decoding.observation import Observation
from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ..about import About
from .made_of import MadeOf


class PerTag(MadeOf):
    """The policy of a request's tag, or the default one.

    Every policy sees its own requests only, so that what it learns is of their tag. As text:
    `per-tag,default=draft:4/target,code=mid:3/target`.

    Args:
        pool: the members.
        default: for tags that are not named.
        tags: policy by tag.
    """

    about: About | None = About(lossless=True, members="what its policies need")

    def __init__(self, pool: Pool, /, *, default: Policy, **tags: Policy) -> None:
        self._default = default
        self._tags = tags
        self._open: dict[str, Policy] = {}
        super().__init__((default, *tags.values()), tags)

    def decide(self, seen: Observation) -> Step:
        """As the policy of its tag."""
        request_id = seen.request_id
        policy = self._open.get(request_id)
        if policy is None:
            policy = self._open[request_id] = self._tags.get(seen.tag, self._default)
        return policy.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """The policy of its tag learns."""
        self._open[outcome.request_id].learn(outcome)
        if outcome.done:
            del self._open[outcome.request_id]
