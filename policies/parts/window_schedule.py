"""A window per request that follows acceptance: longer after a full acceptance, shorter after a refusal.

The heuristic schedule of transformers' assisted generation (`num_assistant_tokens_schedule="heuristic"`).
"""

from ...arguments import check_within
from ...decoding.contract import ONE_STEP, Outcome


class WindowSchedule:
    """Windows by request. Mutated by `note`.

    Args:
        start: first window of a request, 1 to `most`.
        up: added after a round in which every drafted token stayed, >= 0.
        down: taken off otherwise (the window never falls below 1), >= 0.
        most: longest window, 1 to 1,000,000.

    Raises:
        ValueError: an argument out of range.
    """

    __slots__ = ("_down", "_most", "_start", "_up", "_windows")

    def __init__(self, *, start: int, up: int, down: int, most: int) -> None:
        check_within("most", most, ONE_STEP)
        check_within("start", start, f"[1, most={most}]")
        if up < 0 or down < 0:
            raise ValueError(f"up and down must be >= 0, got up={up}, down={down}")
        self._start, self._up, self._down, self._most = start, up, down, most
        self._windows: dict[str, int] = {}

    def window(self, request_id: str) -> int:
        """Of the request's next round, 1 to `most`."""
        return self._windows.get(request_id, self._start)

    def note(self, outcome: Outcome) -> None:
        """Move the request's window after a verification that judged something; forget a request that is done."""
        if outcome.done:
            self._windows.pop(outcome.request_id, None)
        elif outcome.num_judged:
            window = self.window(outcome.request_id)
            longer = outcome.refused_at is None
            window = min(window + self._up, self._most) if longer else max(window - self._down, 1)
            self._windows[outcome.request_id] = window
