"""Early commit: no check of a block whose drafter is sure, and ever less sureness asked as the answer advances.

Prophet (Li et al., Diffusion Language Models Know the Answer Before Decoding, arXiv:2508.19982) stops the refinement of
a diffusion model, and commits all of its answer, once the gap of the two largest logits exceeds a threshold that falls
with progress in three stages. Taken over to drafts: a block is committed unchecked if the drafter's two largest
*probabilities* differ by at least the threshold at every token of it; else the target judges the block. Gaps of logits
mean something else for every model, so the paper's numbers do not carry over; ours are chosen on the shipped recording.
Progress is what is committed over the budget; an answer that ends early never sees the low threshold, as nobody knows
its length beforehand.
"""

from ...decoding.contract import Commit, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import SIGNALS, About
from ..parts.default_members import A_SURE_DRAFTER, sure_drafter
from ..parts.drafted_blocks import DraftedBlocks


class EarlyCommit(DraftedBlocks):
    """Two levels; a draft that is sure throughout is not judged.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model that has probabilities.
        tokens: block, >= 1.
        high: gap of probabilities asked in the first third of the budget, 0 to 1.
        middle: in the second third, at most `high`.
        low: in the last third, at most `middle`.

    Raises:
        ValueError: an option out of range, thresholds that rise, or a drafter without probabilities.
    """

    about = About(paper="Prophet, arXiv:2508.19982", lossless=False, members=A_SURE_DRAFTER, observes=SIGNALS)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        tokens: int = 4,
        high: float = 0.9,
        middle: float = 0.8,
        low: float = 0.6,
    ) -> None:
        if not 0.0 <= low <= middle <= high <= 1.0:
            raise ValueError(
                f"thresholds must fall: 0 <= low <= middle <= high <= 1, got low={low}, middle={middle}, high={high}"
            )
        super().__init__(Draft(sure_drafter(pool, draft, "early-commit"), tokens), Verify(pool.target))
        self._high, self._middle, self._low = high, middle, low

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """Commit the block where the drafter is sure throughout."""
        asked = self._asked(seen.num_emitted, seen.remaining)
        pending = seen.pending
        sure = all(token.signal.gap >= asked for token in pending)
        return Commit(len(pending)) if sure else self._verify

    def _asked(self, num_emitted: int, remaining: int) -> float:
        """The threshold at this progress, in thirds of the budget."""
        thirds = 3 * num_emitted // (num_emitted + remaining)
        return (self._high, self._middle, self._low)[thirds]
