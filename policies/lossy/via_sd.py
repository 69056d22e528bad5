"""VIA-SD: a slim verifier judges every block, the target only what the slim one does not trust itself with.

VIA-SD (arXiv:2606.12243). Per drafted token r = slim_prob(token) / max slim_prob; two thresholds route it three ways:
the draft's token, the slim verifier's, or the full model (`rules.Band`). One slim pass a block; at most one full pass,
lazily, if something was escalated (`rules.Vouched`); the block ends at the first changed token.

What the paper leaves open, and what is done here: its printed thresholds (0.5, and 1 - 0.3) leave no room for the
middle way, so ours are r >= accept and r < escalate with escalate < accept. It does not say what becomes of tokens
after an escalated one; here the slim verifier judges on after it, and the full pass settles all of the block. How to
hold a rate of divergences, and the guard against repetition, are ours.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...arguments import check_within
from ...decoding.contract import Commit, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ...decoding.rules.acceptance import Band, Vouched
from ..about import VERDICT_PROBS, About, Observable
from ..parts.default_members import A_VERIFIER_BETWEEN, drafter_of, middle_verifier
from ..parts.drafted_blocks import DraftedBlocks
from .divergence_budget import STRICTEST, DivergenceBudget

STRICTNESS_STEPS = 16
# Of the guard: n-grams, and how far back it looks. A loop of up to 16 tokens shows in twice its length.
ORDER = 3
LOOK_BACK = 32


class ViaSD(DraftedBlocks):
    """Draft a block, let the slim verifier route its tokens, and ask the target for the escalated ones.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        slim: the slim verifier, between drafter and target; default the largest below the target.
        tokens: block, >= 1.
        accept: r from which a drafted token stays, (0, 1].
        escalate: r below which the target judges, 0 to `accept`; at 0 it never does.
        guard: share of repeated trigrams among the last 32 tokens, (0, 1], from which the target judges whole blocks
            as in plain speculation; None for no guard.
        budget: divergences per 1,000 tokens to hold, see `DivergenceBudget`: thresholds tighten from the given ones
            towards 1, and the target checks some blocks; None keeps the thresholds.

    Raises:
        ValueError: an option out of range, or a pool without a slim verifier.
    """

    about = About(paper="VIA-SD, arXiv:2606.12243", lossless=False, members=A_VERIFIER_BETWEEN, observes=VERDICT_PROBS)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        slim: str | None = None,
        tokens: int = 5,
        accept: float = 0.6,
        escalate: float = 0.3,
        guard: float | None = None,
        budget: float | None = None,
    ) -> None:
        if guard is not None:
            check_within("guard", guard, "(0, 1]")
            self.about = replace(self.about, observes=self.about.observes | {Observable.text})
        drafter = drafter_of(pool, draft)
        super().__init__(Draft(drafter, tokens), Verify(pool.target))
        self._slim = middle_verifier(pool, slim, drafter, "via-sd")
        steps = STRICTNESS_STEPS if budget is not None else 0
        self._routes = [Verify(self._slim, band) for band in _bands(accept, escalate, steps)]
        self._settle = Verify(pool.target, Vouched(pool.level(self._slim)))
        self._guard = guard
        self._budget = None if budget is None else DivergenceBudget(budget)
        self._checked: dict[str, list[bool]] = {}
        self.most_pending = tokens + 1

    @property
    def strictness(self) -> float:
        """Where the budget has moved the policy, 0 (its own thresholds) to 2 (all is checked); 0 without a budget."""
        return 0.0 if self._budget is None else self._budget.strictness

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """Slim pass, then commit or the full pass."""
        if last.step.__class__ is Draft:
            return self._verify if self._is_degenerate(seen) else self._routes[self._route()]
        if self._budget is not None and self._budget.is_due():
            # The target judges what the slim verifier endorses, too; what it escalated tells nothing of that.
            self._checked[seen.request_id] = [token.judge == self._slim for token in seen.pending]
            return self._verify
        return self._settle if last.num_escalated else Commit(seen.num_pending)

    def learn(self, outcome: Outcome) -> None:
        """Count what a check found; nothing else is learnt."""
        if self._budget is None or not outcome.num_emitted:
            return
        endorsed = self._checked.pop(outcome.request_id, None)
        if endorsed is None:
            return
        refused = outcome.refused_at
        end = outcome.num_judged if refused is None else refused + 1
        found = refused is not None and endorsed[refused]
        if any(endorsed):
            self._budget.note_check(sum(endorsed), sum(endorsed[:end]), int(found))

    def _route(self) -> int:
        if self._budget is None:
            return 0
        return round(min(self._budget.strictness / STRICTEST, 1.0) * STRICTNESS_STEPS)

    def _is_degenerate(self, seen: Observation) -> bool:
        if self._guard is None:
            return False
        recent = seen.emitted_from(max(seen.num_emitted - LOOK_BACK, 0))
        # Fewer tokens than the look-back hold: too little to tell a loop from a list.
        return len(recent) >= LOOK_BACK // 2 and repeated_share(recent, ORDER) >= self._guard


def _bands(accept: float, escalate: float, steps: int) -> list[Band]:
    """From the given thresholds to the strictest: all but the slim verifier's most probable tokens is escalated."""
    first = Band(accept, escalate)
    shares = [number / steps for number in range(1, steps + 1)]
    # At the end escalate would equal accept, which leaves no middle way, and as a Band is refused.
    nearly = 1.0 - 2.0**-20
    tightened = [(accept + share * (1.0 - accept), escalate + share * (nearly - escalate)) for share in shares]
    return [first, *(Band(high, min(low, high * nearly)) for high, low in tightened)]


def repeated_share(tokens: Sequence[int], order: int) -> float:
    """Share of the n-grams of `tokens` that stood there before, 0 to 1; 0 where fewer than two fit.

    Degenerate text makes every model confident, and agreement worthless.

    Args:
        tokens: token ids.
        order: n, >= 1.
    """
    count = len(tokens) - order + 1
    if count < 2:
        return 0.0
    distinct = len(set(zip(*[tokens[start : start + count] for start in range(order)], strict=True)))
    return 1.0 - distinct / count
