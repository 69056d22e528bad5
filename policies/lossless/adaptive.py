"""Two levels with a window that follows acceptance: longer after a full acceptance, shorter after a refusal.

The heuristic schedule of transformers' assisted generation (`num_assistant_tokens_schedule="heuristic"`), per request.
"""

from dataclasses import replace

from ...arguments import check_within
from ...decoding.contract import ONE_STEP, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.default_members import A_DRAFTER, drafter_of
from ..parts.drafted_blocks import DraftedBlocks


class Adaptive(DraftedBlocks):
    """Window +`up` after full acceptance, -`down` otherwise.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        start: first window of a request, 1 to `most`.
        up: added after a round in which every drafted token stayed, >= 0.
        down: taken off otherwise (the window never falls below 1), >= 0.
        most: longest window, 1 to 1,000,000.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(paper="the heuristic schedule of transformers", lossless=True, members=A_DRAFTER)

    def __init__(
        self, pool: Pool, *, draft: str | None = None, start: int = 4, up: int = 2, down: int = 1, most: int = 16
    ) -> None:
        check_within("most", most, ONE_STEP)
        check_within("start", start, f"[1, most={most}]")
        if up < 0 or down < 0:
            raise ValueError(f"up and down must be >= 0, got up={up}, down={down}")
        super().__init__(Draft(drafter_of(pool, draft), most), Verify(pool.target))
        self._start, self._up, self._down, self._most = start, up, down, most
        self._drafts: dict[int, Draft] = {}
        self._windows: dict[str, int] = {}

    def block(self, seen: Observation) -> Step:
        """A draft of the request's window."""
        window = self._windows.get(seen.request_id, self._start)
        draft = self._drafts.get(window)
        if draft is None:
            draft = self._drafts[window] = replace(self._draft, tokens=window)
        return draft

    def learn(self, outcome: Outcome) -> None:
        """Move the window after each verification that judged something."""
        if outcome.done:
            self._windows.pop(outcome.request_id, None)
        elif outcome.num_judged:
            window = self._windows.get(outcome.request_id, self._start)
            longer = outcome.refused_at is None
            window = min(window + self._up, self._most) if longer else max(window - self._down, 1)
            self._windows[outcome.request_id] = window
