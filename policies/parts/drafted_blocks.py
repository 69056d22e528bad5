"""The shape of two-level policies that differ in the rule only: draft a block, judge it."""

from ...decoding.contract import Draft, Step, Verify
from ...decoding.observation import Observation


class DraftedBlocks:
    """Draft and judge in turns; a drafter that finds nothing makes it plain decoding.

    Args:
        drafter: name of the member that drafts.
        tokens: block, >= 1.
        verify: the step behind each draft, by the target.

    Raises:
        ValueError: `tokens` out of range.
    """

    __slots__ = ("_draft", "_verify")

    def __init__(self, drafter: str, tokens: int, verify: Verify) -> None:
        self._draft = Draft(drafter, tokens)
        self._verify = verify

    def next_step(self, seen: Observation) -> Step:
        """The draft behind a commit, the verification behind a draft."""
        last = seen.last
        return self._draft if last is None or last.num_emitted else self._verify
