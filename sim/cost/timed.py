"""Seconds from the step times or answer times that an imported recording holds."""

from collections.abc import Iterator
from math import inf, isfinite, isnan, nan

import numpy as np

from ...traces.rounds.recording import TIMED, RoundsRecording
from ...traces.rounds.rounds import TARGET_ALONE, Rounds, RoundsRequest
from .base import LOOKUP_S, CostRangeError, DraftTerms, RoundScale
from .profile import extrapolation_notes
from .round_means import RoundMeans, SplitRounds


class TimedCost:
    """Seconds of recorded rounds, and their means for whatever was not recorded.

    A round recorded with its own `draft_s` and `verify_s` costs these. Where the log has seconds of whole answers
    only, every round of the answer takes an equal share of them, after the prefill if that is known; of that share
    the target's forward takes what a step of the target alone took in the same request (in the recording's mean where
    this request has none), and drafting takes the rest. An answer whose rounds were faster than steps of the target
    alone counts as drafted in no time, so that shares always add up to what was measured.

    Everything else is a mean, times what the same drafter's rounds of the same request took in parts of it, so that a
    window on either side of the recorded one costs about what that one did (`round_scale`). The target: by new tokens
    of a forward, interpolated between the measured widths (drafted + 1, and 1 for the target alone). Drafters: seconds
    of a drafted token, which are estimated where the log does not say how many were drafted (`RoundMeans`).

    Args:
        recording: with seconds of at least one answer or round.
        extrapolate: answer beyond the widths measured; see `Profile`.

    Raises:
        ValueError: a recording without seconds.
        CostRangeError: by `forward_s`, more than one row, a width or a member that was not measured.
    """

    def __init__(self, recording: RoundsRecording, *, extrapolate: bool = False) -> None:
        if not recording.timed:
            raise ValueError(f"cost {TIMED}: {recording.meta.name} holds no seconds, neither of rounds nor of answers")
        self.name = TIMED
        self.lookup_s = LOOKUP_S
        self._target = recording.meta.target
        self._requests = {request.request_id: request for request in recording.requests}
        self._extrapolate = extrapolate
        self._plain_s = _mean_plain_s(recording)
        self._rounds: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
        self._prefilled = {info.name for info in recording.meta.drafters if info.prefilled}
        self._windows = windows = {
            info.name: info.window or _longest(recording, info.name) for info in recording.meta.drafters
        }
        means = RoundMeans(windows, self._plain_s)
        for request, drafter, rounds in _all_rounds(recording):
            means.add(drafter, rounds, self._split(request, drafter, rounds))
        self._drafting_s = means.drafting_s()
        self._most_draft_s = means.most_draft_s()
        self._scales: dict[tuple[str, str], RoundScale] = {}
        self._verifying = means.verifying(f"cost {TIMED}: {self._target}", extrapolate=extrapolate)
        self._shared = tuple(means.shared)
        self._estimated = tuple(means.estimated)

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`. What is held is in the means, and so are a drafter's new tokens."""
        if num_rows > 1:
            raise CostRangeError(
                f"cost {TIMED}: measured with one request at a time, asked for {num_rows}",
                under_load="give the cluster max_num_seqs = 1, or use another cost",
            )
        if model == self._target:
            if self._verifying is None:
                raise CostRangeError(
                    f"cost {TIMED}: the log has no seconds of {model} alone, so drafting and verification cannot be "
                    f"told apart; import it together with answers that {model} wrote alone, or use another cost"
                )
            if new_tokens == 1 and isnan(self._plain_s) and not self._extrapolate:
                raise CostRangeError(
                    f"cost {TIMED}: the log has no step of {model} alone; import it together with answers that {model} "
                    "wrote alone, or give `extrapolate`, which takes what the narrowest verification took "
                    f"({self._verifying.least} new tokens)"
                )
            return self._verifying.seconds(new_tokens)
        if model not in self._drafting_s:
            raise CostRangeError(f"cost {TIMED}: no seconds of drafting were recorded for {model!r}; use another cost")
        return self._drafting_s[model]

    def round_s(self, request_id: str, start: int, drafter: str) -> tuple[float, float] | None:
        """Seconds of a recorded round; see `RoundCost`."""
        request = self._requests[request_id]
        if drafter == TARGET_ALONE:
            plain_s = _plain_s(request)
            return None if isnan(plain_s) or start >= request.num_tokens[TARGET_ALONE] else (0.0, plain_s)
        known = self._rounds.get((request_id, drafter))
        if known is None:
            known = self._rounds[request_id, drafter] = self._by_start(request, drafter)
        return known.get(start)

    def round_scale(self, request_id: str, drafter: str) -> RoundScale:
        """How a drafter's rounds of a request differ from the means; see `RoundCost`."""
        scale = self._scales.get((request_id, drafter))
        if scale is None:
            scale = self._scales[request_id, drafter] = self._scale(self._requests[request_id], drafter)
        return scale

    def round_shape(self, request_id: str, start: int, drafter: str) -> tuple[int, int]:
        """(tokens drafted, tokens held before the round) of a recorded round, as far as the log says.

        Where it does not say how many were drafted, the drafter's window stands for it; where the length of the prompt
        is unknown, the prompt counts for nothing.
        """
        request = self._requests[request_id]
        rounds = request.rounds.get(drafter)
        held = request.prompt_tokens + start
        if rounds is None:
            return 0, held
        drafted = int(rounds.drafted[np.searchsorted(rounds.start, start)])
        return self._windows[drafter] if drafted < 0 else drafted, held

    def prompt_tokens(self, request_id: str) -> int:
        """Tokens of a request's prompt, 0 if the log does not say."""
        return self._requests[request_id].prompt_tokens

    def prefill_s(self, request_id: str, method: str) -> float:
        """Seconds before the first round; see `RoundCost`.

        A step's share where the prefill wrote a token, and only the seconds of the whole answer are known.
        """
        request = self._requests[request_id]
        rounds = request.rounds.get(method)
        if method in request.prefill_s or rounds is None or method not in self._prefilled or rounds.draft_s is not None:
            return request.prefill_s.get(method, 0.0)
        share = self._shared_s(request, method, rounds)
        return 0.0 if isnan(share) else share

    def draft_terms(self, model: str) -> DraftTerms | None:
        """See `CostModel`: drafts cost their forwards."""
        return None

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`."""
        notes = list(extrapolation_notes([self._target] if self._verifying and self._verifying.extrapolated else []))
        if self._shared:
            notes.append(f"rounds take equal shares of an answer's measured seconds: {', '.join(self._shared)}")
        if self._estimated:
            notes.append(f"drafted tokens unknown, seconds of one are estimated: {', '.join(self._estimated)}")
        return tuple(notes)

    def _scale(self, request: RoundsRequest, drafter: str) -> RoundScale:
        """Measured over mean seconds of the rounds that the drafter had in the request; 1 where it had none."""
        mean = RoundScale(1.0, 1.0, self._most_draft_s.get(drafter, inf))
        rounds = request.rounds.get(drafter)
        if rounds is None or not len(rounds.start) or self._verifying is None:
            return mean
        split = self._split(request, drafter, rounds)
        timed = np.isfinite(split.draft_s + split.verify_s)
        if not timed.any():
            return mean
        drafted = np.where(rounds.drafted < 0, self._windows[drafter], rounds.drafted)[timed]
        draft_s, verify_s = float(split.draft_s[timed].sum()), float(split.verify_s[timed].sum())
        mean_verify_s = sum(self._verifying.seconds(width) for width in (drafted + 1).tolist())
        verifying = verify_s / mean_verify_s if verify_s else 1.0
        if drafter in self._most_draft_s:  # how much it drafted here, nobody knows: only what it took
            return RoundScale(1.0, verifying, draft_s / int(timed.sum()))
        mean_draft_s = self._drafting_s[drafter] * int(drafted.sum())
        return RoundScale(draft_s / mean_draft_s if draft_s and mean_draft_s else 1.0, verifying, inf)

    def _by_start(self, request: RoundsRequest, drafter: str) -> dict[int, tuple[float, float]]:
        rounds = request.rounds.get(drafter)
        if rounds is None:
            return {}
        split = self._split(request, drafter, rounds)
        seconds = zip(rounds.start.tolist(), split.draft_s.tolist(), split.verify_s.tolist(), strict=True)
        return {start: (draft, verify) for start, draft, verify in seconds if isfinite(draft + verify)}

    def _split(self, request: RoundsRequest, drafter: str, rounds: Rounds) -> SplitRounds:
        """Seconds of drafting and of the target's forward."""
        if rounds.draft_s is not None and rounds.verify_s is not None:
            return SplitRounds(draft_s=rounds.draft_s, verify_s=rounds.verify_s, shared=False)
        round_s = self._shared_s(request, drafter, rounds)
        plain_s = _plain_s(request)
        if isnan(plain_s):
            plain_s = self._plain_s
        # Without any seconds of the target alone a round is known in one piece.
        verify_s = round_s if isnan(plain_s) else min(plain_s, round_s)
        each = np.ones(len(rounds.start))
        return SplitRounds(draft_s=(round_s - verify_s) * each, verify_s=verify_s * each, shared=True)

    def _shared_s(self, request: RoundsRequest, method: str, rounds: Rounds) -> float:
        """Seconds of each step of a timed answer, NaN if it was not timed.

        Tokens outside rounds are steps of their own, but for that of a prefill whose seconds are known.
        """
        seconds = request.seconds(method) - request.prefill_s.get(method, 0.0)
        length = request.length(method)
        outside = length - int(np.minimum(rounds.accepted + 1, length - rounds.start).sum())
        if method in self._prefilled and method in request.prefill_s:
            outside -= 1
        return seconds / max(len(rounds.start) + max(0, outside), 1)


def _all_rounds(recording: RoundsRecording) -> Iterator[tuple[RoundsRequest, str, Rounds]]:
    for request in recording.requests:
        for drafter, rounds in request.rounds.items():
            if len(rounds.start):
                yield request, drafter, rounds


def _longest(recording: RoundsRecording, drafter: str) -> int:
    """Most tokens of a round that stayed, at least 1."""
    kept = [rounds.accepted.max() for _, name, rounds in _all_rounds(recording) if name == drafter]
    return max(1, int(max(kept, default=1)))


def _plain_s(request: RoundsRequest) -> float:
    """Seconds of a step of the target alone, NaN if unknown."""
    seconds = request.seconds(TARGET_ALONE) - request.prefill_s.get(TARGET_ALONE, 0.0)
    return seconds / request.num_tokens[TARGET_ALONE] if TARGET_ALONE in request.num_tokens else nan


def _mean_plain_s(recording: RoundsRecording) -> float:
    """Mean over all steps of the target alone, NaN if none was timed."""
    timed = [request for request in recording.requests if not isnan(_plain_s(request))]
    tokens = sum(request.num_tokens[TARGET_ALONE] for request in timed)
    if not tokens:
        return nan
    return sum(_plain_s(request) * request.num_tokens[TARGET_ALONE] for request in timed) / tokens
