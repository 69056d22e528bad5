"""Speculative cascades: the verifier takes over only where a deferral rule says so.

Narasimhan et al., Faster Cascades via Speculative Decoding (arXiv:2405.19261); the formulas stand in
`rules.Deferral`. The paper judges with the rule inside rejection sampling of a mixed distribution; ours keeps or
replaces single tokens, which is the same text in greedy decoding. Its thresholds are tuned per task for a wanted rate
of deferral; ours is one option.
"""

from dataclasses import replace

from ...decoding.contract import Draft, Verify
from ...decoding.pool import Pool
from ...decoding.rules.cascade_deferral import KINDS, Deferral
from ..about import About, Observable
from ..parts.default_members import drafter_of, sure_drafter
from ..parts.drafted_blocks import DraftedBlocks


class SpeculativeCascade(DraftedBlocks):
    """Two levels; the target judges drafts by a deferral rule.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model, for other rules than token the smallest that has probabilities.
        tokens: block, >= 1.
        rule: chow, diff, opt or token; see `rules.Deferral`.
        eps: of the rule, 0 to 1.

    Raises:
        ValueError: an option out of range, or a rule that needs the drafter's probabilities where there are none.
    """

    about = About(
        paper="Faster Cascades, arXiv:2405.19261",
        lossless=False,
        members="a drafter below the target; one with probabilities unless rule=token",
        observes=frozenset({Observable.verdict_probs}),
    )

    def __init__(
        self, pool: Pool, *, draft: str | None = None, tokens: int = 5, rule: str = "token", eps: float = 0.2
    ) -> None:
        if rule not in KINDS:
            raise ValueError(f"rule must be one of {', '.join(KINDS)}, got {rule!r}")
        judge = Deferral(rule, eps)
        drafter = drafter_of(pool, draft) if rule == "token" else sure_drafter(pool, draft, f"cascade,rule={rule}")
        super().__init__(Draft(drafter, tokens), Verify(pool.target, judge))
        if rule == "opt":
            self.about = replace(self.about, observes=self.about.observes | {Observable.distances})
