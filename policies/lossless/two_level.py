"""A drafter and the target with the window that should pay most, worked out anew while it runs.

The window n of least expected seconds per token, (n t + v(n + 1)) (1 - a) / (1 - a^(n+1)), which is Theorem 3.8 of
Leviathan et al. 2023 (arXiv:2211.17192) for measured seconds: t of a drafted token, v(k) of a verification of k
positions, acceptance a. The theorem takes v as constant and a as known; how to follow them is left open there. Here
both are running averages over all requests, and v is a line in k, since width costs something on every machine.
"""

from dataclasses import replace

from ...arguments import check_within
from ...decoding.contract import ONE_STEP, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.acceptance_rate import acceptance_rate, judged
from ..parts.default_members import A_DRAFTER, drafter_of
from ..parts.drafted_blocks import DraftedBlocks
from ..parts.member_seconds import MemberSeconds


class TwoLevel(DraftedBlocks):
    """Two levels with the analytically best window, acceptance and seconds estimated as it runs.

    Where window 0 is best the target decodes alone, and one round in `every` drafts a token to hear of acceptance.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        start: window of the first rounds, 1 to `most`.
        most: longest window, 1 to 1,000,000.
        warmup: rounds before the window is chosen, >= 1.
        every: rounds between two choices, >= 1.
        memory: rounds that the averages reach back, >= 1.
        costs: of forwards, as `draft:1/target:10`, to plan with instead of measured seconds; see `member_seconds`.

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
        super().__init__(Draft(drafter_of(pool, draft), most), Verify(pool.target))
        self._drafts = [replace(self._draft, tokens=window) for window in range(1, most + 1)]
        self._warmup, self._every = warmup, every
        self._seconds = MemberSeconds(pool, costs, memory=memory)
        self._acceptance = acceptance_rate(memory=memory)
        self._rounds = 0
        self._probes = False
        self.window = start

    def block(self, seen: Observation) -> Step:
        """A draft of the window, or plain decoding."""
        if self.window:
            return self._drafts[self.window - 1]
        if self._probes:
            self._probes = False
            return self._drafts[0]
        return self._verify

    def learn(self, outcome: Outcome) -> None:
        """Follow seconds and acceptance; every so many rounds, choose."""
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
        for window in range(len(self._drafts) + 1):
            tokens += acceptance**window
            draft_s = self._seconds.draft_s(self._draft.model, window) or 0.0 if window else 0.0
            seconds = draft_s + (self._seconds.verify_s(self._verify.model, window + 1) or 0.0)
            if seconds < best * tokens:
                best, self.window = seconds / tokens, window
