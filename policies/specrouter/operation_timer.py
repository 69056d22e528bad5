"""Tells the profiler what the forwards of whole operations took.

The rows of an operation arrive one by one, each with the seconds of all. A row alone would mislead: in a batch the
seconds follow from the widths of all rows, and a draft runs until its longest row ends. So rows are gathered until they
are whole. Not so those of the target: beside them it reads prompts, whole ones or chunks, of which nobody learns. What
its latest operation was fed in all, the load says to whoever decides next.
"""

from math import inf

from ...decoding.contract import Outcome, Verify
from ...decoding.observation import Load, Observation
from ..parts.performance_profiler import PerformanceProfiler

PROMPT = 16  # tokens a row that a first forward is fed, from which on the others are not like it
NOTHING = (-1, False, 0, 0.0)  # what is gathered before the first row of an operation


def tokens_fed(seen: Observation, model: str, *, judged: int | None = None) -> int:
    """Tokens that the first forward of a step by `model` is fed for this request.

    Args:
        seen: the request, when the step is decided.
        model: drafts or verifies.
        judged: pending tokens that it judges, all of which it reads; None of a draft.
    """
    context, cached = seen.context_tokens, seen.cached(model)
    return context - (cached if judged is None else min(cached, context - judged - 1))


class OperationTimer:
    """Feeds a profiler with whole operations. Mutated by `note` and `settle`.

    Args:
        profiler: is told.
        target: level of the target.
    """

    def __init__(self, profiler: PerformanceProfiler, target: int) -> None:
        self._profiler = profiler
        self._target = target
        self._key: tuple[int, bool, int, float] = NOTHING
        self._settled = False
        self._target_ran = False
        self._told: tuple[int, int, float] | None = None
        self._rows = 0
        self._fed = 0
        self._longest = 0

    def settle(self, load: Load, *, begins: bool) -> None:
        """Someone decides: the next row is one of another operation, and the load tells of the target's latest.

        Args:
            load: as it is seen.
            begins: whether it is the first decision of a request, so that an operation of the target has read the end
                of its prompt. Nobody may have learnt of that one.
        """
        self._settled = True
        if not (self._target_ran or begins):
            return
        level = self._target
        ran = load.batch[level], load.new_tokens[level], load.duration_s[level]
        if ran[1] and (self._target_ran or ran != self._told):
            self._profiler.note(level, new_tokens=ran[1], seconds=ran[2])
            self._told = ran
        self._target_ran = False

    def note(self, level: int, fed: int, outcome: Outcome) -> None:
        """Take in a row that was fed `fed` tokens first."""
        verify = outcome.step.__class__ is Verify
        if verify and level == self._target:
            self._target_ran = True
            return
        key = (level, verify, outcome.num_rows, outcome.duration_s)
        if key != self._key or self._settled:
            self._begin(key)
        self._rows += 1
        self._fed += fed
        self._longest = max(self._longest, outcome.num_drafted)
        if verify:
            self._verified()
        elif self._rows == outcome.num_rows:
            if self._longest:
                self._draft(level, self._width(), outcome.duration_s)
            self._key = NOTHING

    def _width(self) -> int:
        return max(1, round(self._fed / self._rows))

    def _begin(self, key: tuple[int, bool, int, float]) -> None:
        self._key = key
        self._settled = False
        self._rows = self._fed = self._longest = 0

    def _verified(self) -> None:
        """One row more of a verification; the last one tells what it took."""
        level, _, num_rows, seconds = self._key
        if self._rows == num_rows:
            self._profiler.note(level, new_tokens=self._fed, seconds=seconds)
            self._key = NOTHING

    def _draft(self, level: int, width: int, seconds: float) -> None:
        """The first forward is fed what the caches lack, the others one token a row."""
        rows, count = self._rows, self._longest
        if level < self._profiler.num_lookups:  # one takes what it takes, however much it reads or copies, row by row
            self._profiler.note(level, new_tokens=1, seconds=seconds / rows)
            return
        narrow_s = self._profiler.narrowest_s(level, rows)
        if narrow_s is None and width > PROMPT:
            narrow_s = self._profiler.guessed_s(level, rows)
        first_s = seconds if count == 1 else seconds - (count - 1) * (inf if narrow_s is None else narrow_s)
        if width > 2 and first_s > 0.0:
            self._profiler.note(level, new_tokens=rows * width, seconds=first_s)
        elif width <= 2 or narrow_s is None:
            self._profiler.note(level, new_tokens=rows, seconds=seconds / count)
