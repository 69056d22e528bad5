"""A policy of your own: longer drafts after full acceptance, shorter ones after a rejection."""

from paceline.policies import ConfidenceBelow, Draft, Observation, Outcome, Pool, Step, Verify


class MyPolicy:
    """Draft with the smallest model while its probabilities are high, then let the target verify."""

    def __init__(self, pool: Pool, *, start: int = 3, longest: int = 8, sure: float = 0.3) -> None:
        if not 1 <= start <= longest:
            raise ValueError(f"start must be in [1, longest={longest}], got {start}")
        drafter = next(name for name in pool.names if not pool.is_model_free(name))
        self._drafts = [Draft(drafter, tokens, ConfidenceBelow(sure)) for tokens in range(1, longest + 1)]
        self._verify = Verify(pool.target)
        self._start, self._windows = start, dict[str, int]()

    def decide(self, seen: Observation) -> Step:
        """Draft first, then verify; the target alone writes the last token."""
        if seen.num_pending or seen.room == 1:
            return self._verify
        return self._drafts[min(self._windows.get(seen.request_id, self._start), seen.room - 1) - 1]

    def learn(self, outcome: Outcome) -> None:
        """One token more after a full acceptance, one less after a rejection."""
        if outcome.done:
            self._windows.pop(outcome.request_id, None)
        elif outcome.num_judged:
            window = self._windows.get(outcome.request_id, self._start) + (1 if outcome.refused_at is None else -1)
            self._windows[outcome.request_id] = min(max(window, 1), len(self._drafts))
