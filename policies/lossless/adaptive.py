"""Two levels with a window that follows acceptance: longer after a full acceptance, shorter after a refusal.

The heuristic schedule of transformers' assisted generation (`num_assistant_tokens_schedule="heuristic"`), per request.
"""

from typing import ClassVar

from ...decoding.contract import Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.counts import check_count
from ..parts.default_members import drafter_of
from .chain import found_nothing


class Adaptive:
    """Window +`up` after full acceptance, -`down` otherwise.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        start: first window of a request, 1 to `most`.
        up: added after a round in which every drafted token stayed, >= 0.
        down: taken off otherwise (the window never falls below 1), >= 0.
        most: longest window, 1 to 1,000,000.

    Attributes:
        most_pending: tokens it may have pending, at most.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about: ClassVar[About] = About(
        paper="the heuristic schedule of transformers", lossless=True, members="a drafter below the target"
    )

    def __init__(
        self, pool: Pool, *, draft: str | None = None, start: int = 4, up: int = 2, down: int = 1, most: int = 16
    ) -> None:
        check_count("most", most)
        if not 1 <= start <= most:
            raise ValueError(f"start must be in [1, most={most}], got {start}")
        if up < 0 or down < 0:
            raise ValueError(f"up and down must be >= 0, got up={up}, down={down}")
        self._start, self._up, self._down, self._most = start, up, down, most
        self._drafter = drafter_of(pool, draft)
        self.most_pending = most
        self._drafts: dict[int, Draft] = {}
        self._verify = Verify(pool.target)
        self._windows: dict[str, int] = {}

    def decide(self, seen: Observation) -> Step:
        """Draft the request's window, then verify."""
        if seen.num_pending or found_nothing(seen.last):
            return self._verify
        window = self._windows.get(seen.request_id, self._start)
        draft = self._drafts.get(window)
        if draft is None:
            draft = self._drafts[window] = Draft(self._drafter, window)
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
