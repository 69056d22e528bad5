"""Windows by urgency: who is late drafts as far as acceptance allows, who has time to spare drafts less.

In a loaded batch every drafted token takes time from all requests. AdaServe (arXiv:2501.12162) shares the tokens of a
batch's verification out so that each request keeps the pace of its service level, and the rest goes where it brings
most. It builds token trees; here the same thought is a rule on windows. A request has a window that follows its own
acceptance (`WindowSchedule`). It drafts that window as long as the batch is not loaded, or when its next token is due
within `margin` rounds. Where it is due later, in a loaded batch, the window shrinks in proportion,

    floor(window x margin x round seconds / seconds until the token is due)

down to none. So a request that is ahead of its pace gives way until it is not.
"""

from dataclasses import replace

from ...arguments import check_least, check_within
from ...decoding.contract import Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.default_members import A_DRAFTER, drafter_of
from ..parts.drafted_blocks import DraftedBlocks
from ..parts.window_schedule import WindowSchedule


class Slo(DraftedBlocks):
    """A window by acceptance for the urgent, less of it for those with slack in a loaded batch.

    A round's seconds are those of the latest draft and the latest verification. A request without a deadline never has
    slack: nothing says that it may wait.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        loaded: running requests from which on a batch is loaded, >= 1.
        margin: rounds before its next token is due in which a request is urgent, > 0.
        start: first window of a request, 1 to `most`.
        up: added after a round in which every drafted token stayed, >= 0.
        down: taken off otherwise (the window never falls below 1), >= 0.
        most: longest window, 1 to 1,000,000.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(paper="AdaServe, arXiv:2501.12162", lossless=True, members=A_DRAFTER)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        loaded: int = 8,
        margin: float = 2.0,
        start: int = 4,
        up: int = 2,
        down: int = 1,
        most: int = 8,
    ) -> None:
        check_least("loaded", loaded, 1)
        check_within("margin", margin, "(0, inf)")
        self._schedule = WindowSchedule(start=start, up=up, down=down, most=most)
        super().__init__(Draft(drafter_of(pool, draft), most), Verify(pool.target))
        self._drafts: dict[int, Draft] = {}
        self._levels = (pool.level(self._draft.model), pool.target_level)
        self._loaded, self._margin = loaded, margin

    def block(self, seen: Observation) -> Step:
        """A draft of what its urgency leaves of the request's window, or plain decoding."""
        window = self._urged(seen, self._schedule.window(seen.request_id))
        if not window:
            return self._verify
        draft = self._drafts.get(window)
        if draft is None:
            draft = self._drafts[window] = replace(self._draft, tokens=window)
        return draft

    def learn(self, outcome: Outcome) -> None:
        """Move the request's window after each verification that judged something."""
        self._schedule.note(outcome)

    def _urged(self, seen: Observation, window: int) -> int:
        load, due_s = seen.load, seen.deadline_s
        if due_s is None or load.num_running < self._loaded:
            return window
        soon_s = self._margin * sum(load.duration_s[level] for level in self._levels)
        slack_s = due_s - load.now_s
        return window if slack_s <= soon_s else int(window * soon_s / slack_s)
