"""PyramidSD: a qualifier between drafter and target, and fuzzy acceptance at each of the two.

Byun et al., 3-Model Speculative Decoding (arXiv:2510.12966): a drafted token is accepted where
Div(qualifier, draft) <= tau_Q and Div(target, qualifier) <= tau_T. Left open there: which divergence (we take total
variation), what a verifier does with a token beyond its threshold (we let it judge exactly, see `Fuzzy`), and
when the target is called (once the qualifier endorses `gather` tokens).

With tau_T = 0 the target judges exactly and the text is the target's in greedy decoding and coupled sampling, however
fuzzy the qualifier: `about` of such an object says lossless.
"""

from dataclasses import replace

from ...arguments import check_least, check_within
from ...decoding.contract import Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ...decoding.rules.acceptance import Exact, Fuzzy
from ..about import About, Observable
from ..parts.default_members import middle_verifier, sure_drafter
from ..parts.drafted_blocks import DraftedBlocks


class PyramidSD(DraftedBlocks):
    """Three levels: drafts are judged by the qualifier, what it keeps by the target.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model that has probabilities.
        qualifier: between drafter and target; default the largest below the target.
        tokens: drafted before the qualifier judges, >= 1.
        gather: tokens endorsed by the qualifier before the target judges, >= 1.
        tau_q: total variation distance up to which the qualifier takes the drafter's token, 0 to 1.
        tau_t: the same of target and qualifier; 0 judges exactly.

    Raises:
        ValueError: an option out of range, or a pool without a qualifier.
    """

    about = About(
        paper="PyramidSD, arXiv:2510.12966",
        lossless=False,
        members="a drafter with probabilities, and a verifier between it and the target",
        observes=frozenset({Observable.distances}),
    )

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        qualifier: str | None = None,
        tokens: int = 4,
        gather: int = 5,
        tau_q: float = 0.4,
        tau_t: float = 0.2,
    ) -> None:
        check_least("gather", gather, 1)
        check_within("tau_q", tau_q, "[0, 1]")
        check_within("tau_t", tau_t, "[0, 1]")
        drafter = sure_drafter(pool, draft, "pyramid-sd")
        super().__init__(Draft(drafter, tokens), Verify(pool.target, Fuzzy(tau_t) if tau_t > 0.0 else Exact()))
        self._gather = gather
        self.most_pending = gather + tokens
        self._qualify = Verify(middle_verifier(pool, qualifier, drafter, "pyramid-sd"), Fuzzy(tau_q))
        if tau_t == 0.0:
            self.about = replace(self.about, lossless=True)

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """Qualify each draft, and draft on until enough is gathered for the target."""
        if last.step.__class__ is Draft:
            return self._qualify
        return self._verify if seen.num_pending >= self._gather or seen.room < 1 else self._draft
