"""Two levels with a window that follows acceptance: longer after a full acceptance, shorter after a refusal.

The heuristic schedule of transformers' assisted generation (`num_assistant_tokens_schedule="heuristic"`), per request.
"""

from dataclasses import replace

from ...decoding.contract import Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.default_members import A_DRAFTER, drafter_of
from ..parts.drafted_blocks import DraftedBlocks
from ..parts.window_schedule import WindowSchedule


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
        self._schedule = WindowSchedule(start=start, up=up, down=down, most=most)
        super().__init__(Draft(drafter_of(pool, draft), most), Verify(pool.target))
        self._drafts: dict[int, Draft] = {}

    def block(self, seen: Observation) -> Step:
        """A draft of the request's window."""
        window = self._schedule.window(seen.request_id)
        draft = self._drafts.get(window)
        if draft is None:
            draft = self._drafts[window] = replace(self._draft, tokens=window)
        return draft

    def learn(self, outcome: Outcome) -> None:
        """Move the window after each verification that judged something."""
        self._schedule.note(outcome)
