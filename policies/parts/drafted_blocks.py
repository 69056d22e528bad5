"""What most policies of two levels share: a block is drafted, then judged until the target has committed."""

from abc import ABC

from ...decoding.contract import Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ..about import About


class DraftedBlocks(ABC):
    """Draft and judge in turns; a drafter that finds nothing makes it plain decoding.

    A policy says what a `block` is, or how to `judge` it; one that always drafts and judges alike is a `FixedBlocks`.

    Args:
        draft: the block.
        verify: how the target judges it.

    Attributes:
        most_pending: tokens it may have pending, at most.
    """

    about: About

    def __init__(self, draft: Draft, verify: Verify) -> None:
        self._draft = draft
        self._verify = verify
        self.most_pending = draft.tokens

    def decide(self, seen: Observation) -> Step:
        """After a commit the next block, else its judgement."""
        last = seen.last
        return self.block(seen) if last is None or last.num_emitted else self.judge(seen, last)

    def learn(self, outcome: Outcome) -> None:  # noqa: B027 - a policy that learns nothing is whole
        """Nothing to learn."""

    def block(self, seen: Observation) -> Step:
        """The next draft."""
        return self._draft

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """What becomes of the pending tokens, after the step that `last` tells of."""
        return self._verify


class FixedBlocks(DraftedBlocks):
    """One and the same draft and its judgement in turns, whatever came of those before (`About.by_pending`)."""

    def decide(self, seen: Observation) -> Step:
        """The block where nothing is pending, unless the draft found nothing; else its judgement."""
        return self._verify if seen.num_pending or seen.found_nothing else self._draft
