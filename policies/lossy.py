"""Policies whose text may differ from the target's, and a controller that keeps one at a stated rate of divergences.

docs/policies-lossy.md describes each and separates what is the paper's from what is ours; `decoding.rules` has the
rules' formulas. Beside them:

- `via-sd`: at most one full pass a block, if something was escalated (`Vouched`). r >= accept and r < escalate < accept
  are ours; after an escalated token the slim verifier continues to judge.
- `early-commit`: progress is the committed share of the budget.
- `ensemble`: the weight of one half is ours; in transformers none is the default.
- `pyramid-sd`: exact judgement beyond the divergence (`Fuzzy`) and `gather` are ours. With tau_T = 0 text in greedy
  decoding and coupled sampling is the target's: `about` of such an object is lossless.
- `typical`: with delta below 1 the most probable token is always kept. Ours is one line of a drafter, and drafts again
  after the target's own token.

A divergence is a committed token that the target, reading the same text, would not have written. (Tables count
positions that differ from the target's own text, and texts may differ for good after one.) Letters: h divergences per
token of unchecked blocks, c the share of blocks that are checked, b the budget per token.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..base.errors import check_least, check_within
from ..decoding.pool import Pool
from ..decoding.rules import KINDS, Band, Deferral, Ensemble, EntropyAbove, Equilibrium, Exact, Fuzzy, Typical, Vouched
from ..decoding.seen import Observation
from ..decoding.steps import Commit, Draft, Outcome, Step, Verify
from .about import SIGNALS, VERDICT_PROBS, About, Observable
from .blocks import (
    A_DRAFTER,
    A_SURE_DRAFTER,
    A_VERIFIER_BETWEEN,
    DraftedBlocks,
    drafter_of,
    middle_verifier,
    sure_drafter,
)


class SpeculativeCascade(DraftedBlocks):
    """Two levels; the target judges drafts by a deferral rule.

    Args:
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
        super().__init__(Draft(drafter, tokens), Verify(pool.target, judge), others=())
        if rule == "opt":
            self.about = replace(self.about, observes=self.about.observes | {Observable.distances})


LEAST_SHARE = 1 / 8
STRICTEST = 1.0  # up to here thresholds tighten, from here to 2 checks become more frequent
GAIN = 0.4


class DivergenceBudget:
    """Controls one number, strictness, from 0 (the policy's own thresholds) to 2 (every block is checked).

    A checked block commits no divergence and shows how many an unchecked one would have. A check that looks at n of L
    tokens (a verifier stops at the first divergence) and finds d = 0 or 1 stands for 1 / c blocks: in the mean, if all
    is scaled by n / L, for d (1 - c) divergences on n ((1 - c) + c n / L) committed tokens. So strictness moves by GAIN
    x (LEAST_SHARE / c) x (d (1 - c) - b n ((1 - c) + c n / L)), which is 0 in the mean where the budget is met.

    Strictness up to 1 tightens thresholds at c = 1 / 8. Where these do not suffice (a token of which the middle
    verifier is sure, and wrong), c grows from 1 / 8 to 1 between 1 and 2. So every budget can be met, at worst at the
    price of plain speculation with a slim pass on top.

    `per_thousand` is the budget in divergences per 1,000 tokens, above 0 to 1,000, else ValueError.
    """

    __slots__ = ("_budget", "_credit", "strictness")

    def __init__(self, per_thousand: float) -> None:
        if not 0.0 < per_thousand <= 1000.0:
            raise ValueError(f"budget must be in (0, 1000] divergences per 1,000 tokens, got {per_thousand!r}")
        self._budget = per_thousand / 1000.0
        self._credit = 0.0
        self.strictness = STRICTEST

    @property
    def share(self) -> float:
        """Share of blocks that are checked, 1 / 8 to 1."""
        excess = self.strictness - STRICTEST
        return LEAST_SHARE + (1.0 - LEAST_SHARE) * excess if excess > 0.0 else LEAST_SHARE

    def is_due(self) -> bool:
        """Whether this block is to be checked; to be called once a block."""
        self._credit += self.share
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True

    def note_check(self, num_tokens: int, num_looked_at: int, num_divergent: int) -> None:
        """Note a checked block.

        Args:
            num_tokens: that would have been committed unchecked, >= 1.
            num_looked_at: of those, up to and including the first divergence.
            num_divergent: 1 if there was one, else 0.
        """
        share = self.share
        committed = num_looked_at * (1.0 - share + share * num_looked_at / num_tokens)
        error = (1.0 - share) * num_divergent - self._budget * committed
        moved = self.strictness + GAIN * LEAST_SHARE / share * error
        self.strictness = min(max(moved, 0.0), STRICTEST + 1.0)


class EarlyCommit(DraftedBlocks):
    """Two levels; a draft that is sure throughout is not judged.

    Args:
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
        super().__init__(Draft(sure_drafter(pool, draft, "early-commit"), tokens), Verify(pool.target), others=())
        self._high, self._middle, self._low = high, middle, low

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """Commit the block where the drafter is sure throughout."""
        thirds = 3 * seen.num_emitted // (seen.num_emitted + seen.remaining)  # of the budget
        asked = (self._high, self._middle, self._low)[thirds]
        pending = seen.pending
        sure = all(token.signal.gap >= asked for token in pending)
        return Commit(len(pending)) if sure else self._verify


class EntropyPatch(DraftedBlocks):
    """Two levels; the target judges boundaries only.

    Args:
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
        super().__init__(Draft(drafter, most, EntropyAbove(theta)), Verify(pool.target), others=())

    def block(self, seen: Observation) -> Step:
        """A patch, once the boundary of the last one is judged: its inside has just been committed."""
        return self._verify if seen.num_pending else self._draft

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """Commit the inside of the patch, have its boundary judged."""
        num_pending = seen.num_pending
        ended_early = last.num_drafted < self._draft.tokens and seen.room > 0  # which only a boundary does
        if not (ended_early or seen.pending[-1].signal.entropy > self._theta):
            return Commit(num_pending)
        return Commit(num_pending - 1) if num_pending > 1 else self._verify


class EquilibriumDecoding(DraftedBlocks):
    """Two levels; a drafted token is kept where both models' equilibrium prefers it to the target's own.

    Args:
        draft: the drafter; default the smallest model that has probabilities.
        tokens: block, >= 1.
        generator: lambda, 0.01 to 100: how strongly the drafter is held to its own probabilities.
        discriminator: lambda, 0.01 to 100: how strongly the target is.
        eta: learning rate, > 0.
        rounds: updates of the game, 1 to 100.

    Raises:
        ValueError: an option out of range, or a drafter without probabilities.
    """

    about = About(
        paper="The Consensus Game, arXiv:2310.09139", lossless=False, members=A_SURE_DRAFTER, observes=VERDICT_PROBS
    )

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        tokens: int = 5,
        generator: float = 0.1,
        discriminator: float = 0.2,
        eta: float = 1.0,
        rounds: int = 8,
    ) -> None:
        rule = Equilibrium(generator=generator, discriminator=discriminator, eta=eta, rounds=rounds)
        super().__init__(Draft(sure_drafter(pool, draft, "equilibrium"), tokens), Verify(pool.target, rule), others=())


class EnsembleVerification(DraftedBlocks):
    """Two levels; drafts are judged by a mixture of the target and the drafter.

    Args:
        draft: the drafter; default the smallest model that has probabilities.
        tokens: block, >= 1.
        weight: of the target in the mixture, in (0, 1); `assistant_ensemble_weight` of transformers.

    Raises:
        ValueError: an option out of range, or a drafter without probabilities.
    """

    about = About(paper="DIVERSE, arXiv:2604.07622", lossless=False, members=A_SURE_DRAFTER, observes=VERDICT_PROBS)

    def __init__(self, pool: Pool, *, draft: str | None = None, tokens: int = 5, weight: float = 0.5) -> None:
        drafter = sure_drafter(pool, draft, "ensemble")
        super().__init__(Draft(drafter, tokens), Verify(pool.target, Ensemble(weight)), others=())


class PyramidSD(DraftedBlocks):
    """Three levels: drafts are judged by the qualifier, what it keeps by the target.

    Args:
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
        verifier = middle_verifier(pool, qualifier, drafter, "pyramid-sd")
        judge = Verify(pool.target, Fuzzy(tau_t) if tau_t > 0.0 else Exact())
        super().__init__(Draft(drafter, tokens), judge, others=(verifier,))
        self._gather = gather
        self.most_pending = gather + tokens
        self._qualify = Verify(verifier, Fuzzy(tau_q))
        if tau_t == 0.0:
            self.about = replace(self.about, lossless=True)

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """Qualify each draft, and draft on until enough is gathered for the target."""
        if last.step.__class__ is Draft:
            return self._qualify
        return self._verify if seen.num_pending >= self._gather or seen.room < 1 else self._draft


class TypicalAcceptance(DraftedBlocks):
    """Two levels; the target keeps what is plausible to it.

    Args:
        draft: the drafter; default the smallest model.
        tokens: block, 1 to 1,000,000.
        eps: probability above which a token is kept whatever the entropy, above 0 to 1.
        delta: factor on exp(-H), above 0 to 1.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(paper="Medusa, arXiv:2401.10774", lossless=False, members=A_DRAFTER, observes=VERDICT_PROBS)

    def __init__(
        self, pool: Pool, *, draft: str | None = None, tokens: int = 5, eps: float = 0.09, delta: float = 0.3
    ) -> None:
        super().__init__(Draft(drafter_of(pool, draft), tokens), Verify(pool.target, Typical(eps, delta)), others=())


STRICTNESS_STEPS = 16
# Of the guard: n-grams, and how far back it looks. A loop of up to 16 tokens shows in twice its length.
ORDER = 3
LOOK_BACK = 32


class ViaSD(DraftedBlocks):
    """Draft a block, let the slim verifier route its tokens, and ask the target for the escalated ones.

    Args:
        draft: the drafter; default the smallest model.
        slim: the slim verifier, between drafter and target; default the largest below the target.
        tokens: block, >= 1.
        accept: r from which a drafted token is kept, (0, 1].
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
        self._slim = middle_verifier(pool, slim, drafter, "via-sd")
        super().__init__(Draft(drafter, tokens), Verify(pool.target), others=(self._slim,))
        steps = STRICTNESS_STEPS if budget is not None else 0
        self._routes = [Verify(self._slim, band) for band in _bands(accept, escalate, steps)]
        self._settle = Verify(pool.target, Vouched(pool.level(self._slim)))
        self._guard = guard
        self._budget = None if budget is None else DivergenceBudget(budget)
        self._checked: dict[str, list[bool]] = {}
        self.most_pending = tokens + 1

    @property
    def strictness(self) -> float:
        """The budget's present strictness, 0 (the policy's own thresholds) to 2 (checks all); 0 without a budget."""
        return 0.0 if self._budget is None else self._budget.strictness

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """Slim pass, then commit or the full pass."""
        if last.step.__class__ is Draft:
            strict = min(self.strictness / STRICTEST, 1.0)
            return self._verify if self._is_degenerate(seen) else self._routes[round(strict * STRICTNESS_STEPS)]
        if self._budget is not None and self._budget.is_due():
            # The target judges what the slim verifier endorses, too; escalated tokens do not count.
            self._checked[seen.request_id] = [token.judge == self._slim for token in seen.pending]
            return self._verify
        return self._settle if last.num_escalated else Commit(seen.num_pending)

    def learn(self, outcome: Outcome) -> None:
        """Note the result of a check; nothing else is learnt."""
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

    def _is_degenerate(self, seen: Observation) -> bool:
        if self._guard is None:
            return False
        recent = seen.emitted_from(max(seen.num_emitted - LOOK_BACK, 0))
        # In fewer tokens than half the look-back a loop looks like a list.
        return len(recent) >= LOOK_BACK // 2 and repeated_share(recent, ORDER) >= self._guard


def _bands(accept: float, escalate: float, steps: int) -> list[Band]:
    """From the given thresholds to the strictest: only the slim verifier's most probable tokens are not escalated."""
    first = Band(accept, escalate)
    shares = [number / steps for number in range(1, steps + 1)]
    # At the end escalate would equal accept, an empty middle band, which `Band` rejects.
    nearly = 1.0 - 2.0**-20
    tightened = [(accept + share * (1.0 - accept), escalate + share * (nearly - escalate)) for share in shares]
    return [first, *(Band(high, min(low, high * nearly)) for high, low in tightened)]


def repeated_share(tokens: Sequence[int], order: int) -> float:
    """Share of the n-grams (n = `order` >= 1) of `tokens` that occurred before, 0 to 1; 0 where fewer than two fit.

    In degenerate text every model is confident, and agreement says nothing.
    """
    count = len(tokens) - order + 1
    if count < 2:
        return 0.0
    distinct = len(set(zip(*[tokens[start : start + count] for start in range(order)], strict=True)))
    return (count - distinct) / count  # three of thirty are a guard of 0.1
