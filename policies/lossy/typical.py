"""Typical acceptance: the target keeps a drafted token that it finds plausible, not only its own.

Medusa (Cai et al. 2024, arXiv:2401.10774), equation 1: a token stays where

    target_prob > min(eps, delta exp(-H)),    H the entropy of the target's distribution, nats

so a sure target keeps little but its own token, an unsure one much. The paper recommends delta = sqrt(eps); 0.09 and
0.3 are the defaults of its code. A most probable token has at least exp(-H), so with delta below 1 the target's own
greedy token always stays. What differs: Medusa's candidates are a tree of its heads and the longest accepted branch
wins, ours is one line of a drafter; its code ignores the rule at temperature 0, ours asks for the probabilities at
temperature 1 in greedy decoding; and a refused token is replaced by the target's own, where it drafts anew.
"""

from ...decoding.contract import Draft, Verify
from ...decoding.pool import Pool
from ...decoding.rules.acceptance import Typical
from ..about import VERDICT_PROBS, About
from ..parts.default_members import A_DRAFTER, drafter_of
from ..parts.drafted_blocks import DraftedBlocks


class TypicalAcceptance(DraftedBlocks):
    """Two levels; the target keeps what is plausible to it.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        tokens: block, 1 to 1,000,000.
        eps: probability above which a token stays whatever the entropy, above 0 to 1.
        delta: factor on exp(-H), above 0 to 1.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(paper="Medusa, arXiv:2401.10774", lossless=False, members=A_DRAFTER, observes=VERDICT_PROBS)

    def __init__(
        self, pool: Pool, *, draft: str | None = None, tokens: int = 5, eps: float = 0.09, delta: float = 0.3
    ) -> None:
        super().__init__(Draft(drafter_of(pool, draft), tokens), Verify(pool.target, Typical(eps, delta)))
