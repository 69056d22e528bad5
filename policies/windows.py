"""Two levels, or several that vote, with a draft whose length adapts; docs/policies.md describes each.

`consensus` is after tightwad's mode `strict`, where drafters write in parallel; we found no paper of it. In the chain
`draft:4/mid:8/target` drafting continues after the middle member has corrected the draft, here it stops. `adaedl`: the
token at which the rule holds stays in the draft. `two-level` has Theorem 3.8 of Leviathan et al. 2023
(arXiv:2211.17192) for measured seconds: running averages over all requests, a verification's as a line in its width.
"""

from dataclasses import replace

from ..base.errors import check_within
from ..decoding.pool import Pool
from ..decoding.rules import EntropyAbove
from ..decoding.seen import Observation, found_nothing
from ..decoding.steps import ONE_STEP, Commit, Draft, Outcome, Step, Verify
from .about import SIGNALS, VOTES, About
from .blocks import (
    A_DRAFTER,
    A_VERIFIER_BETWEEN,
    DraftedBlocks,
    WindowSchedule,
    acceptance_rate,
    drafter_of,
    judged,
    next_verifier,
    smallest_model,
)
from .estimates import MemberSeconds


class Consensus(DraftedBlocks):
    """Draft while the drafters agree, then let the target judge.

    Args:
        voters: two drafters or more from smallest to largest, separated by `@`, as `draft@mid`; all except the first
            must be able to verify. Default the smallest model and the smallest verifier above it.
        tokens: drafted between two votes, 1 to `most`.
        most: tokens drafted ahead of the target, 1 to 1,000,000; every voter but the first may add one.

    Raises:
        ValueError: an option out of range, or voters that are fewer than two, not in order, or unable to verify.
    """

    about = About(paper="consensus verification, tightwad 2026", lossless=True, members=A_VERIFIER_BETWEEN)

    def __init__(self, pool: Pool, *, voters: str | None = None, tokens: int = 4, most: int = 12) -> None:
        check_within("most", most, ONE_STEP)
        check_within("tokens", tokens, f"[1, most={most}]")
        if voters is None:
            smallest = smallest_model(pool)
            names: tuple[str, ...] = (smallest, next_verifier(pool, None, smallest, "consensus"))
        else:
            names = _named_voters(pool, voters)
        super().__init__(Draft(names[0], tokens), Verify(pool.target), others=names)
        self._votes = dict(zip(names, (*map(Verify, names[1:]), None), strict=True))
        self._drafts = {name: Draft(name, tokens) for name in names}
        self._most = most
        self.most_pending = most + len(names) - 1
        if len(names) > 2:  # where the second one objects, the third does not judge
            self.about = replace(self.about, observes=VOTES)

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """The next voter's verification; if all agreed, another draft; if one objected, the target judges."""
        step = last.step
        if last.refused_at is not None or isinstance(step, Commit):
            return self._verify
        vote = self._votes[step.model]
        if found_nothing(last):
            # A lookup without a match has no vote, and the next voter writes in its place.
            return self._verify if seen.num_pending or vote is None else self._drafts[vote.model]
        if vote is not None:
            return vote
        continues = step.__class__ is Verify and seen.has_room and seen.num_pending + self._draft.tokens <= self._most
        return self._draft if continues else self._verify


def _named_voters(pool: Pool, text: str) -> tuple[str, ...]:
    names = tuple(text.split("@"))
    levels = [pool.level(name) for name in names]
    if len(names) < 2 or levels != sorted(set(levels)) or levels[-1] == pool.target_level:
        raise ValueError(
            f"voters must be two members below the target or more, from smallest to largest and separated by @, "
            f"got {text!r}; the pool has {', '.join(pool.names)}"
        )
    mute = [name for name, level in zip(names, levels, strict=True) if not pool.members[level].verifies]
    if set(mute) - {names[0]}:
        raise ValueError(f"voters but the first must be able to verify, {mute[-1]!r} cannot")
    return names


class AdaEDL(DraftedBlocks):
    """Two levels; a draft ends where an entropy bound on acceptance falls below a threshold that adapts.

    Args:
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
        super().__init__(Draft(drafter_of(pool, draft), most, self._stop()), Verify(pool.target), others=())

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


class Adaptive(DraftedBlocks):
    """Window +`up` after full acceptance, -`down` otherwise.

    Args:
        draft: the drafter; default the smallest model.
        start: first window of a request, 1 to `most`.
        up: added after a round in which every drafted token stayed, >= 0.
        down: taken off otherwise (the window never falls below 1), >= 0.
        most: longest window, 1 to 1,000,000.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(paper="the heuristic schedule of transformers, Gante 2023", lossless=True, members=A_DRAFTER)

    def __init__(
        self, pool: Pool, *, draft: str | None = None, start: int = 4, up: int = 2, down: int = 1, most: int = 16
    ) -> None:
        self._schedule = WindowSchedule(start=start, up=up, down=down, most=most)
        super().__init__(Draft(drafter_of(pool, draft), most), Verify(pool.target), others=())

    def block(self, seen: Observation) -> Step:
        """A draft of the request's window."""
        return self.block_of(self._schedule.window(seen.request_id))

    def learn(self, outcome: Outcome) -> None:
        """Move the window after each verification that judged something."""
        self._schedule.note(outcome)


class TwoLevel(DraftedBlocks):
    """Two levels with the analytically best window, acceptance and seconds estimated as it runs.

    Where window 0 is best the target decodes alone, and one round in `every` drafts a token to hear of acceptance.

    Args:
        draft: the drafter; default the smallest model.
        start: window of the first rounds, 1 to `most`.
        most: longest window, 1 to 1,000,000.
        warmup: rounds before the window is chosen, >= 1.
        every: rounds between two choices, >= 1.
        memory: rounds that the averages reach back, >= 1.
        costs: of forwards, as `draft:1/target:10`, to plan with instead of measured seconds.

    Attributes:
        window: of the next round, 0 to `most`.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(paper="Leviathan et al. 2023, arXiv:2211.17192", lossless=True, members=A_DRAFTER)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        start: int = 4,
        most: int = 16,
        warmup: int = 8,
        every: int = 8,
        memory: int = 64,
        costs: str | None = None,
    ) -> None:
        check_within("most", most, ONE_STEP)
        check_within("start", start, f"[1, most={most}]")
        if warmup < 1 or every < 1:
            raise ValueError(f"warmup and every must be >= 1, got warmup={warmup}, every={every}")
        super().__init__(Draft(drafter_of(pool, draft), most), Verify(pool.target), others=())
        self._warmup, self._every = warmup, every
        self._seconds = MemberSeconds(pool, costs, memory=memory)
        self._acceptance = acceptance_rate(memory=memory)
        self._rounds = 0
        self._probes = False
        self.window = start

    def block(self, seen: Observation) -> Step:
        """A draft of the window, or plain decoding."""
        if not self.window and self._probes:
            self._probes = False
            return self.block_of(1)
        return self.block_of(self.window)

    def learn(self, outcome: Outcome) -> None:
        """Note seconds and acceptance; choose when due."""
        self._seconds.charge(outcome)
        if outcome.step.__class__ is not Verify:
            return
        if outcome.num_judged:
            self._acceptance.note(*judged(outcome))
        self._rounds += 1
        if self._rounds >= self._warmup and self._rounds % self._every == 0:
            self._choose()
            self._probes = not self.window

    def _choose(self) -> None:
        acceptance = self._acceptance.rate
        if self._seconds.draft_s(self._draft.model, 1) is None or self._seconds.verify_s(self._verify.model, 1) is None:
            return  # a lookup that never found anything has no seconds yet
        tokens, best = 0.0, float("inf")
        for window in range(self._draft.tokens + 1):
            tokens += acceptance**window
            draft_s = self._seconds.draft_s(self._draft.model, window) or 0.0 if window else 0.0
            seconds = draft_s + (self._seconds.verify_s(self._verify.model, window + 1) or 0.0)
            if seconds < best * tokens:
                best, self.window = seconds / tokens, window
