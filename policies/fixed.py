"""Policies that learn nothing: `plain`, chains, prompt lookup, drafts that end by a fixed threshold, `via-sd-lossless`.

docs/policies.md describes each. A chain (Leviathan et al. 2023, arXiv:2211.17192; more levels as in SpecRouter,
arXiv:2505.07680) runs its lower part until the tokens kept by a level number at least its window; then the next level
judges all of them. In HiSpec early exits of the target at about 1/8 and 1/4 of its depth draft and verify. We read its
abstract and summaries: the windows 4 and 8 are ours, as is that members may be any models. The token at which a stop
holds stays in the draft.

`via-sd-lossless` is lossless in greedy decoding and coupled sampling. Under rejection sampling which tokens reach the
target depends on their values: the runtime gives the target the mixture that they follow (docs/policies-lossy.md).
"""

from dataclasses import replace

from ..base.errors import check_within
from ..decoding.pool import Pool
from ..decoding.rules import ConfidenceBelow, EntropyAbove, Ratio, Stop
from ..decoding.seen import Observation
from ..decoding.steps import ONE_STEP, Draft, Outcome, Step, Verify
from .about import SIGNALS, VERDICT_PROBS, About, say_runs
from .blocks import (
    A_DRAFTER,
    A_VERIFIER_BETWEEN,
    DraftedBlocks,
    FixedBlocks,
    drafter_of,
    lookup_member,
    middle_verifier,
    next_verifier,
)
from .chain_text import parse_chain


class Chain:
    """A fixed chain with fixed windows.

    Args:
        spec: the chain in notation.
        stop: ends the lowest level's drafts early; None drafts whole windows.

    Attributes:
        spec: the chain.
        most_pending: tokens it may have pending, at most.

    Raises:
        ValueError: a text that is no chain of this pool.
    """

    about = About(
        paper="Leviathan et al. 2023, arXiv:2211.17192; SpecRouter, arXiv:2505.07680",
        lossless=True,
        members="those of the chain",
        by_pending=True,
    )

    def __init__(self, pool: Pool, spec: str, *, stop: Stop | None = None) -> None:
        chain = parse_chain(spec, pool)
        self.spec = chain
        self.most_pending = sum(chain.windows)
        verifiers = chain.members[1:] or chain.members
        # The lowest verifier judges any draft: a short one had a reason to end.
        windows = (1, *chain.windows[1:])
        self._verifies = [(name, Verify(name), window) for name, window in zip(verifiers, windows, strict=True)]
        self._draft = Draft(chain.members[0], chain.windows[0], stop) if chain.windows else None
        say_runs(self, chain.members)
        if stop is not None:
            self.about = replace(self.about, observes=SIGNALS)
        if chain.members == (pool.target,):
            self.about = replace(self.about, target_alone=True)

    def decide(self, seen: Observation) -> Step:
        """The lowest verifier with tokens to judge, if its window is full; else a draft."""
        if not seen.num_pending:
            return self._verifies[0][1] if self._draft is None or seen.found_nothing else self._draft
        if len(self._verifies) == 1:
            return self._verifies[0][1]
        hurry = not seen.has_room or seen.found_nothing
        for model, verify, window in self._verifies:
            waiting = seen.waiting(model)
            if waiting >= window or (waiting and hurry):
                return verify
            if waiting:
                break  # levels above judge only what this one has kept
        assert self._draft is not None  # a chain of one level never has anything pending
        return self._draft

    def learn(self, outcome: Outcome) -> None:
        """A fixed chain learns nothing."""


class HiSpec(Chain):
    """Three levels: each draft is judged by a verifier that costs little, what it gathers by the target.

    Args:
        draft: the drafter, an early exit in the paper; default the smallest model.
        middle: the intermediate verifier, a later exit in the paper; default the smallest above the drafter.
        tokens: drafted before the intermediate verifier judges, 1 to 1,000,000.
        gather: tokens that it has accepted, its own among them, before the target judges, 1 to 1,000,000.

    Raises:
        ValueError: an option out of range, or a pool without a verifier between drafter and target.
    """

    about = About(paper="HiSpec, arXiv:2510.01336", lossless=True, members=A_VERIFIER_BETWEEN, by_pending=True)

    def __init__(
        self, pool: Pool, *, draft: str | None = None, middle: str | None = None, tokens: int = 4, gather: int = 8
    ) -> None:
        check_within("tokens", tokens, ONE_STEP)
        check_within("gather", gather, ONE_STEP)
        drafter = drafter_of(pool, draft)
        verifier = next_verifier(pool, middle, drafter, "hispec")
        super().__init__(pool, f"{drafter}:{tokens}/{verifier}:{gather}/{pool.target}")


class Ngram(FixedBlocks):
    """Draft by copying from the prompt and the answer so far; plain decoding where nothing matches.

    Args:
        pool: must hold a model-free member.
        tokens: longest copy, >= 1.

    Raises:
        ValueError: no model-free member, or `tokens` below 1.
    """

    about = About(paper="prompt lookup, Saxena 2023", lossless=True, members="a model-free member", by_pending=True)

    def __init__(self, pool: Pool, *, tokens: int = 8) -> None:
        super().__init__(Draft(lookup_member(pool, "ngram"), tokens), Verify(pool.target))


class NgramFront(DraftedBlocks):
    """Try prompt lookup first; the drafting model writes where nothing matches.

    Args:
        pool: must hold a model-free member.
        draft: the drafting model; default the smallest.
        tokens: longest copy, >= 1.
        window: tokens the model drafts, >= 1.

    Raises:
        ValueError: no model-free member, no model below the target, or an option out of range.
    """

    about = About(
        paper="prompt lookup, Saxena 2023",
        lossless=True,
        members="a model-free member and a model below the target",
    )

    def __init__(self, pool: Pool, *, draft: str | None = None, tokens: int = 8, window: int = 4) -> None:
        lookup, drafter = lookup_member(pool, "ngram-model"), drafter_of(pool, draft)
        if pool.is_model_free(drafter):
            raise ValueError(f"draft must be a model, got {drafter!r}, which is model-free")
        super().__init__(Draft(lookup, tokens), Verify(pool.target), others=(drafter,))
        self._draft_instead = Draft(drafter, window)
        self.most_pending = max(tokens, window)

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """The model drafts where the copy came back empty."""
        return self._draft_instead if last.step is self._draft and not last.num_drafted else self._verify


class Plain:
    """Plain decoding: one forward of the target per token."""

    about = About(paper="the baseline of every paper", lossless=True, target_alone=True, by_pending=True)

    def __init__(self, pool: Pool) -> None:
        say_runs(self, (pool.target,))
        self._step = Verify(pool.target)

    def decide(self, seen: Observation) -> Step:
        """Always the target."""
        return self._step

    def learn(self, outcome: Outcome) -> None:
        """Nothing to learn."""


class Confident(FixedBlocks):
    """Draft until the drafter's probability falls below a threshold, then verify.

    Args:
        draft: the drafter; default the smallest model.
        below: probability that ends a draft, 0 to 1; the token is kept in the draft.
        most: longest draft, >= 1.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(
        paper="the assistant confidence of transformers; DISCO, arXiv:2405.04304",
        lossless=True,
        members=A_DRAFTER,
        observes=SIGNALS,
        by_pending=True,
    )

    def __init__(self, pool: Pool, *, draft: str | None = None, below: float = 0.4, most: int = 12) -> None:
        check_within("below", below, "[0, 1]")
        check_within("most", most, ONE_STEP)
        super().__init__(Draft(drafter_of(pool, draft), most, ConfidenceBelow(below)), Verify(pool.target))


class Svip(FixedBlocks):
    """Two levels; a draft ends at the first token whose entropy bound on acceptance is too low.

    Args:
        draft: the drafter; default the smallest model.
        h: largest square root of the entropy in nats, > 0.
        most: longest draft, >= 1.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = replace(Confident.about, paper="SVIP, arXiv:2411.18462")

    def __init__(self, pool: Pool, *, draft: str | None = None, h: float = 1.5, most: int = 12) -> None:
        check_within("h", h, "(0, inf)")
        check_within("most", most, ONE_STEP)
        super().__init__(Draft(drafter_of(pool, draft), most, EntropyAbove(h * h)), Verify(pool.target))


class ViaSDLossless(DraftedBlocks):
    """Draft a block, let the slim verifier cut it, let the target judge what is left.

    Args:
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
        verifier = middle_verifier(pool, slim, drafter, "via-sd-lossless")
        super().__init__(Draft(drafter, tokens), Verify(pool.target), others=(verifier,))
        self._cut = Verify(verifier, Ratio(escalate))
        self.most_pending = tokens + 1

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """Slim pass, then full pass."""
        return self._cut if last.step.__class__ is Draft else self._verify
