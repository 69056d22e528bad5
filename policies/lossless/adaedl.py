"""AdaEDL: drafting ends where the drafter's entropy bounds acceptance below a threshold, which follows acceptance.

Agrawal et al. 2024 (arXiv:2410.18351): the chance that the target keeps the next token is at least about
1 - sqrt(gamma H), H the entropy of the drafter's distribution; the draft ends where that falls below lambda. After
each verification r <- beta1 r + (1 - beta1) kept/drafted, and lambda moves to beta2 lambda + (1 - beta2) (lambda +- e),
up where r is at most the wanted rate, down above it: the controller of Draft & Verify (Zhang et al. 2023,
arXiv:2309.08168), whose constants are the defaults here. Two things differ: the token that trips the rule stays in the
draft, as every stop here has it, and lambda is one for all requests and stays in [0, 1].
"""

from dataclasses import replace

from ...arguments import check_within
from ...decoding.contract import ONE_STEP, Draft, Outcome, Verify
from ...decoding.pool import Pool
from ...decoding.rules.draft_stops import EntropyAbove
from ..about import SIGNALS, About
from ..parts.default_members import A_DRAFTER, drafter_of
from ..parts.drafted_blocks import DraftedBlocks


class AdaEDL(DraftedBlocks):
    """Two levels; a draft ends where an entropy bound on acceptance falls below a threshold that adapts.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        gamma: of the bound 1 - sqrt(gamma H), H in nats, > 0.
        threshold: lambda at the start, 0 to 1.
        wanted: share of drafted tokens to be kept, 0 to 1, towards which lambda is steered.
        step: e, by which lambda is moved before smoothing, 0 to 1; 0 keeps it fixed.
        smooth_rate: beta1, 0 to below 1.
        smooth_threshold: beta2, 0 to below 1.
        most: longest draft, >= 1.

    Attributes:
        threshold: lambda now.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(paper="AdaEDL, arXiv:2410.18351", lossless=True, members=A_DRAFTER, observes=SIGNALS)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        gamma: float = 0.2,
        threshold: float = 0.3,
        wanted: float = 0.9,
        step: float = 0.01,
        smooth_rate: float = 0.5,
        smooth_threshold: float = 0.9,
        most: int = 12,
    ) -> None:
        check_within("most", most, ONE_STEP)
        check_within("gamma", gamma, "(0, inf)")
        check_within("threshold", threshold, "[0, 1]")
        check_within("wanted", wanted, "[0, 1]")
        check_within("step", step, "[0, 1]")
        check_within("smooth_rate", smooth_rate, "[0, 1)")
        check_within("smooth_threshold", smooth_threshold, "[0, 1)")
        self._gamma, self._wanted, self._step = gamma, wanted, step
        self._smooth_rate, self._smooth_threshold = smooth_rate, smooth_threshold
        self._rate = wanted
        self.threshold = threshold
        super().__init__(Draft(drafter_of(pool, draft), most, self._stop()), Verify(pool.target))

    def learn(self, outcome: Outcome) -> None:
        """Steer the threshold towards the wanted share of kept tokens."""
        if not outcome.num_judged:
            return
        kept = outcome.num_accepted / outcome.num_judged
        self._rate += (1.0 - self._smooth_rate) * (kept - self._rate)
        if self._step:
            moved = self.threshold + (self._step if self._rate <= self._wanted else -self._step)
            moved = self.threshold + (1.0 - self._smooth_threshold) * (moved - self.threshold)
            self.threshold = min(max(moved, 0.0), 1.0)
            self._draft = replace(self._draft, stop=self._stop())

    def _stop(self) -> EntropyAbove:
        """1 - sqrt(gamma H) < lambda, solved for H."""
        return EntropyAbove((1.0 - self.threshold) ** 2 / self._gamma)
