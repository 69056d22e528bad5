"""Mean seconds of the parts of recorded rounds: of a drafted token by drafter, of the target's forward by width."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np
from numpy.typing import NDArray

from ...traces.rounds.rounds import Rounds
from .profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRounds:
    """Seconds of one drafter's rounds in one request; R of them.

    Attributes:
        draft_s: `[R]` of drafting, NaN if unknown.
        verify_s: `[R]` of the target's forward, NaN if unknown.
        shared: whether they are shares of a whole answer's seconds.
    """

    draft_s: NDArray[np.float64]
    verify_s: NDArray[np.float64]
    shared: bool


class RoundMeans:
    """Sums over rounds, from which means are taken.

    A drafted token costs seconds of drafting over tokens drafted. Where the log does not say how many were drafted, it
    is the least-squares slope, over answers, of mean drafting seconds by mean tokens that stayed: a drafter that stops
    by its own rule takes as much longer as it drafts more. The slope is held between what every round would give if it
    had drafted the whole window, and if it had drafted no more than what stayed and one refused token. Of a drafter
    that always drafts its window the slope is about 0, which gives the first.

    Args:
        windows: most tokens that each drafter drafts.
        plain_s: seconds of a step of the target alone, NaN if unknown.

    Attributes:
        shared: drafters with rounds that are shares of a whole answer's seconds.
        estimated: drafters with rounds of unknown length.
    """

    def __init__(self, windows: Mapping[str, int], plain_s: float) -> None:
        self._windows = windows
        self._plain_s = plain_s
        self._drafting: dict[str, list[_Drafting]] = defaultdict(list)
        self._verifying: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._shared_widths: set[int] = set()
        self.shared: dict[str, None] = {}
        self.estimated: dict[str, None] = {}

    def add(self, drafter: str, rounds: Rounds, split: SplitRounds) -> None:
        """Take one drafter's rounds of one request."""
        timed = np.isfinite(split.draft_s + split.verify_s)
        if not timed.any():
            return
        window = self._windows[drafter]
        accepted, drafted = rounds.accepted[timed], rounds.drafted[timed]
        unknown = drafted < 0
        if unknown.any():
            self.estimated[drafter] = None
        drafted = np.where(unknown, window, drafted)
        if split.shared:
            self.shared[drafter] = None
            if isnan(self._plain_s):  # a round is known in one piece
                return
            self._shared_widths.update((drafted + 1).tolist())
        else:
            for tokens in np.unique(drafted).tolist():
                seconds = split.verify_s[timed][drafted == tokens]
                self._verifying[tokens + 1][0] += float(seconds.sum())
                self._verifying[tokens + 1][1] += len(seconds)
        least = np.where(unknown, np.minimum(accepted + 1, window), drafted)
        sums = (split.draft_s[timed].sum(), accepted.sum(), drafted.sum(), least.sum())
        self._drafting[drafter].append(_Drafting(len(accepted), *map(float, sums)))

    def drafting_s(self) -> dict[str, float]:
        """Mean seconds of a drafted token, by drafter."""
        return {drafter: _token_s(answers) for drafter, answers in self._drafting.items()}

    def most_draft_s(self) -> dict[str, float]:
        """Mean drafting seconds of a round, of drafters that end drafts by themselves, at lengths nobody logged."""
        return {
            drafter: sum(answer.seconds for answer in answers) / sum(answer.num_rounds for answer in answers)
            for drafter, answers in self._drafting.items()
            if drafter in self.estimated and _token_s(answers) > _least_token_s(answers)
        }

    def verifying(self, whose: str, *, extrapolate: bool) -> Profile | None:
        """The target's mean seconds by new tokens; None if nothing is known of them."""
        seconds = {width: total / count for width, (total, count) in self._verifying.items()}
        if not isnan(self._plain_s):
            seconds = dict.fromkeys([1, *self._shared_widths], self._plain_s) | seconds
        if not seconds:
            return None
        widths = sorted(seconds)
        return Profile(widths, [seconds[width] for width in widths], whose=whose, extrapolate=extrapolate)


@dataclass(frozen=True, slots=True)
class _Drafting:
    """Sums over one answer's rounds: of seconds, of tokens that stayed, of the most and the least drafted."""

    num_rounds: int
    seconds: float
    accepted: float
    most: float
    least: float


def _token_s(answers: list[_Drafting]) -> float:
    """Seconds of a drafted token; see `RoundMeans`."""
    seconds = sum(answer.seconds for answer in answers)
    lower = _least_token_s(answers)
    upper = seconds / max(1.0, sum(answer.least for answer in answers))
    return lower if upper == lower else min(max(lower, _slope(answers)), upper)


def _least_token_s(answers: list[_Drafting]) -> float:
    """If every round had drafted its whole window."""
    return sum(answer.seconds for answer in answers) / max(1.0, sum(answer.most for answer in answers))


def _slope(answers: list[_Drafting]) -> float:
    """Of mean seconds by mean tokens that stayed, answers weighted by their rounds; 0 if they do not differ."""
    weight = np.array([answer.num_rounds for answer in answers], np.float64)
    stayed = np.array([answer.accepted for answer in answers]) / weight
    taken = np.array([answer.seconds for answer in answers]) / weight
    apart = stayed - np.average(stayed, weights=weight)
    spread = float((weight * apart**2).sum())
    return float((weight * apart * taken).sum()) / spread if spread > 0 else 0.0
