"""VIA-SD's routing as an ordering of checks: a slim pass stops hopeless drafts early, the target judges all that stays.

After VIA-SD (arXiv:2606.12243), which commits what its slim verifier accepts. Here the slim verifier drops a token with
slim_prob < escalate x max slim_prob and all after it, and writes its own instead; the rest goes to the target, under
the lossless rule. So nothing is committed that the target has not judged, and the slim pass has to earn its time by
sparing the target (and the block) refusals.

Lossless in greedy decoding and coupled sampling, where the target keeps its own tokens only. Under rejection sampling
which tokens reach the target depends on their values; what they follow then is a mixture of the drafter's and the slim
verifier's distribution, which the runtime hands to the target as their distribution (docs/policies-lossy.md).
"""

from ...arguments import check_within
from ...decoding.contract import Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ...decoding.rules.acceptance import Ratio
from ..about import VERDICT_PROBS, About
from ..parts.default_members import A_VERIFIER_BETWEEN, drafter_of, middle_verifier
from ..parts.drafted_blocks import DraftedBlocks


class ViaSDLossless(DraftedBlocks):
    """Draft a block, let the slim verifier cut it, let the target judge what is left.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        slim: the slim verifier, between drafter and target; default the largest below the target.
        tokens: block, >= 1.
        escalate: r = slim_prob / max slim_prob below which a draft is hopeless, (0, 1].

    Raises:
        ValueError: an option out of range, or a pool without a slim verifier.
    """

    about = About(
        paper="after VIA-SD, arXiv:2606.12243", lossless=True, members=A_VERIFIER_BETWEEN, observes=VERDICT_PROBS
    )

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        slim: str | None = None,
        tokens: int = 8,
        escalate: float = 0.3,
    ) -> None:
        check_within("escalate", escalate, "(0, 1]")
        drafter = drafter_of(pool, draft)
        super().__init__(Draft(drafter, tokens), Verify(pool.target))
        self._cut = Verify(middle_verifier(pool, slim, drafter, "via-sd-lossless"), Ratio(escalate))
        self.most_pending = tokens + 1

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """Slim pass, then full pass."""
        return self._cut if last.step.__class__ is Draft else self._verify
