"""Entropy patches: the small model writes on while the next token is predictable; the target writes where it is not.

Byte Latent Transformer (Pagnoni et al., arXiv:2412.09871) cuts bytes into patches where the entropy of a small
model's next-byte distribution exceeds a threshold (its global constraint), and spends its large model once a patch.
Taken over to tokens: a patch is drafted until a token whose distribution, as the drafter saw it, has an entropy above
`theta`. That token, the boundary, is what the target judges; all before it is committed unchecked. There the boundary
is the first byte of the next patch and is not written yet; here it is drafted and judged, so that a target which
agrees adds a token of its own. A patch that reaches `most` tokens without a boundary is committed whole.
"""

from ...arguments import check_least
from ...decoding.contract import Commit, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ...decoding.rules.draft_stops import EntropyAbove
from ..about import SIGNALS, About
from ..parts.default_members import A_SURE_DRAFTER, sure_drafter
from ..parts.drafted_blocks import DraftedBlocks


class EntropyPatch(DraftedBlocks):
    """Two levels; the target judges boundaries only.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model that has probabilities.
        theta: entropy, nats, above which a token is a boundary, >= 0.
        most: longest patch, >= 1.

    Raises:
        ValueError: an option out of range, or a drafter without probabilities.
    """

    about = About(
        paper="Byte Latent Transformer, arXiv:2412.09871", lossless=False, members=A_SURE_DRAFTER, observes=SIGNALS
    )

    def __init__(self, pool: Pool, *, draft: str | None = None, theta: float = 1.0, most: int = 8) -> None:
        check_least("theta", theta, 0)
        self._theta = theta
        drafter = sure_drafter(pool, draft, "entropy-patch")
        super().__init__(Draft(drafter, most, EntropyAbove(theta)), Verify(pool.target))

    def block(self, seen: Observation) -> Step:
        """A patch, once the boundary of the last one is judged: its inside has just been committed."""
        return self._verify if seen.num_pending else self._draft

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """Commit the inside of the patch, have its boundary judged."""
        num_pending = seen.num_pending
        if not self._ends_in_boundary(seen, last.num_drafted):
            return Commit(num_pending)
        return Commit(num_pending - 1) if num_pending > 1 else self._verify

    def _ends_in_boundary(self, seen: Observation, num_drafted: int) -> bool:
        if num_drafted < self._draft.tokens and seen.room:
            return True  # nothing else ends a draft early
        return seen.pending[-1].signal.entropy > self._theta
