"""Measured seconds: those of a profile of this machine, and those of an imported recording.

A profile has seconds of forwards and of operations outside them; which one fits a recording is decided here. A
recording has seconds of its rounds or answers; means of their parts are used for what was not recorded.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan, nan
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ...base.errors import ArgumentError
from ...base.files import processor
from ...base.terminal import tell
from ...traces.contexts.meta import TrieMeta
from ...traces.errors import TraceFormatError
from ...traces.opening import by_form
from ...traces.profile import (
    CPU,
    ENDING,
    BatchShape,
    DecideSeconds,
    Profile,
    ProfileMeta,
    forwards_of,
    mean_to_decide,
    profiles_here,
    read_profile,
)
from ...traces.recording import Recording
from ...traces.rounds.recording import TIMED, RoundsRecording
from ...traces.rounds.rounds import TARGET_ALONE, Rounds, RoundsRequest
from .base import Beside, CostModel, CostRangeError, RoundScale
from .files import TableProfile, extrapolation_notes


class ProfiledCost(CostModel):
    """Seconds measured on a machine, for `models`.

    A forward's seconds lie between those of the measured shapes around it: linear in the new tokens and the tokens held
    of a row, then linear in rows. Beyond the measured shapes the profile's smooth model is used, and `notes` say so.
    Operations are also charged for uneven rows, and for weights that were not read just before.

    Attributes:
        profile: of the replayed pool.

    Raises:
        CostRangeError: a model that was not profiled.
    """

    knows_operations = True

    def __init__(self, profile: Profile, name: str, models: Sequence[str]) -> None:
        self.name = name
        self.profile = profile
        meta = profile.meta
        self.lookup_s = meta.lookup.seconds(0, 1, 0)
        self._meta = meta
        self._unmeasured: set[str] = set()
        known = {member.name: member for member in profile.meta.members}
        missing = [model for model in models if model not in known]
        if missing:
            raise CostRangeError(f"cost {name}: {missing[0]} was not profiled; it has {', '.join(known)}")
        self._members = {model: forwards_of(profile, known[model]) for model in models}
        self.shares = {model: known[model].shares for model in models}
        self._beside = {(kind, model): known[model].beside(kind) for model in models for kind in get_args(Beside)}

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        return self._members[model].forwards.seconds(num_rows, new_tokens, context_tokens)

    def batch_s(self, model: str, shape: BatchShape, *, first: bool) -> float:
        return self._members[model].seconds(shape, first=first)

    def reloads_s(self, model: str, new_tokens: int, away: Iterable[tuple[float, float]]) -> float:
        return self._members[model].reloads_s(new_tokens, away)

    def lookups_s(self, num_rows: int) -> float:
        return self._meta.lookup.seconds(0, num_rows, 0)

    def beside_s(self, kind: Beside, model: str, *, num_forwards: int, num_rows: int, num_tokens: int) -> float:
        return self._beside[kind, model].seconds(num_forwards, num_rows, num_tokens)

    def decide_s(self, policy: str) -> DecideSeconds:
        """See `CostModel`; for a policy that was not measured the mean of those that were."""
        known = self._meta.decide_s
        if policy in known:
            return known[policy]
        self._unmeasured.add(policy)
        return mean_to_decide(known.values())

    def notes(self) -> tuple[str, ...]:
        beyond = [
            (member.name, member.smooth.held_out_error)
            for member in self._meta.members
            if member.name in self._members and self._members[member.name].forwards.beyond
        ]
        meta = self._meta
        when = f"{meta.measured_at:%Y-%m-%d %H:%M} UTC"
        forced = f", of forced pool {meta.pool}" if meta.forced else ""
        notes = [f"seconds measured on {meta.hardware}, with {meta.sampling} sampling, at {when}{forced}"]
        unsteady = {name: spread for name, spread in self.profile.unsteady().items() if name in self._members}
        if unsteady:
            least, most = (f"{worst(unsteady.values()):.0%}" for worst in (min, max))
            by = most if least == most else f"{least} to {most}"
            notes.append(
                f"seconds of {', '.join(unsteady)} varied by {by} between repeats of this profile (spread): do not "
                "choose between policies that differ by less"
            )
        if beyond:
            told = ", ".join(f"{name} ({'unknown' if error is None else f'{error:.0%}'})" for name, error in beyond)
            notes.append(f"shapes beyond the profile's, by its smooth model (median error): {told}")
        if self._unmeasured:
            notes.append(f"deciding was not measured, the others' mean is taken: {', '.join(sorted(self._unmeasured))}")
        return tuple(notes)


HERE = "here"

# By name, the number of parameters and the dtype.
Models = Mapping[str, tuple[int, str]]


def names_profile(name: str) -> bool:
    """Whether the name of a cost means a profile."""
    return name == HERE or name.endswith(ENDING)


def profiled_cost(
    name: str,
    recording: Recording,
    *,
    allow_foreign: bool,
    threads: int | None = None,
    device: str | None = None,
) -> ProfiledCost:
    """The cost of a profile for a recording.

    Args:
        name: `here`, the newest of this machine and these models, or a file.
        recording: to be replayed.
        allow_foreign: also accept a profile of another machine, or of models of another size.
        threads: of `here`, as of `newest_here`.
        device: of `here`, as of `newest_here`.

    Raises:
        ValueError: no such profile, or a foreign one; one line.
    """
    meta = by_form(recording, tries=lambda tries: tries.meta, rounds=lambda rounds: _refuse_log(rounds, name))
    models = {model.name: (model.parameters, model.dtype) for model in meta.models}
    found = newest_here(models, threads, device) if name == HERE else read_profile(Path(name))
    here = processor()
    other = [] if found.meta.processor == here else [f"measured on {found.meta.hardware}, this is {here}"]
    foreign = other + differences(found.meta, models)
    if foreign and not allow_foreign:
        raise ArgumentError(f"`cost` {name} is a foreign profile: {foreign[0]}; `allow_foreign_profile` takes it")
    called = f"{name}, FOREIGN: {'; '.join(foreign)}" if foreign else name
    return ProfiledCost(found, called, list(models))


def newest_here(models: Models, threads: int | None = None, device: str | None = None) -> Profile:
    """The newest profile of these models on this machine, of those measured with `threads` if there are any.

    `device` is its name in profiles; None accepts any, as for threads. Files that cannot be read are reported on
    standard error.

    Raises:
        ArgumentError: there is none; names the profiles that do not fit.
    """
    spoiled: list[TraceFormatError] = []
    found = list(_fitting(models, device, threads, spoiled))
    if not found:
        on = "this machine" if device in (None, CPU) else f"{device} here"
        passed = "".join(f"; {error}" for error in spoiled)
        raise ArgumentError(
            f"`cost` {HERE} needs a profile of {', '.join(models)} on {on}: make it with paceline profile, or name a "
            f"file{passed}"
        )
    for error in spoiled:
        tell(f"a profile is passed over: {error}")
    return next((profile for profile in found if profile.meta.threads == threads), found[0])


def _fitting(
    models: Models, device: str | None, threads: int | None, spoiled: list[TraceFormatError]
) -> Iterator[Profile]:
    """Profiles of the models on the device, newest first, up to one with the threads; adds bad files to `spoiled`."""
    for path, said in profiles_here(processor()):
        if isinstance(said, TraceFormatError):
            spoiled.append(said)
            continue
        if differences(said, models) or device not in (None, said.device):
            continue
        try:
            yield read_profile(path)
        except TraceFormatError as error:
            spoiled.append(error)
            continue
        if threads in (None, said.threads):
            return


def is_profiled_here(recording: Recording) -> bool:
    """Whether this machine has a profile of a recording's models; never of an imported log's."""
    meta = by_form(recording, tries=lambda tries: tries.meta, rounds=lambda _: None)
    if meta is None:
        return False
    models = {model.name: (model.parameters, model.dtype) for model in meta.models}
    headers = (said for _, said in profiles_here(processor()) if isinstance(said, ProfileMeta))
    return any(not differences(said, models) for said in headers)


def differences(meta: ProfileMeta, models: Models) -> list[str]:
    """How the profiled members differ from models, in words."""
    members = {member.name: member for member in meta.members}
    words = []
    for name, (parameters, dtype) in models.items():
        member = members.get(name)
        if member is None:
            words.append(f"it has no {name}")
        elif (member.parameters, member.dtype) != (parameters, dtype):
            words.append(
                f"its {name} has {member.parameters:,} parameters of {member.dtype}, this one {parameters:,} of {dtype}"
            )
    return words


def _refuse_log(recording: Recording, name: str) -> TrieMeta:
    raise ArgumentError(f"`cost` {name} is for recordings of a pool, {recording.about.name} is an imported log")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRounds:
    """Seconds of R rounds of one drafter in one request."""

    draft_s: NDArray[np.float64]  # `[R]` of drafting, NaN if unknown
    verify_s: NDArray[np.float64]  # `[R]` of the target's forward, NaN if unknown
    shared: bool  # whether they are shares of a whole answer's seconds


class RoundMeans:
    """Sums over rounds, from which means are taken.

    Seconds of a drafted token are drafting seconds over tokens drafted. Where the log lacks the number of drafted
    tokens, they are the least-squares slope, over answers, of mean drafting seconds by mean accepted tokens: a drafter
    that stops by its own rule takes as much longer as it drafts more. The slope is bounded by its values if every round
    had drafted the whole window, and if it had drafted only the accepted tokens and one rejected token. Of a drafter
    that always drafts its window the slope is about 0, which gives the first.

    Args:
        windows: most drafted tokens in a round, by drafter.
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
        """Add one drafter's rounds of one request."""
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
            if isnan(self._plain_s):  # only whole rounds are known
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
        """Mean drafting seconds of a round, of drafters that end drafts by themselves, at lengths not logged."""
        return {
            drafter: sum(answer.seconds for answer in answers) / sum(answer.num_rounds for answer in answers)
            for drafter, answers in self._drafting.items()
            if drafter in self.estimated and _token_s(answers) > _least_token_s(answers)
        }

    def verifying(self, whose: str, *, extrapolate: bool) -> TableProfile | None:
        """The target's mean seconds by new tokens; None if unknown."""
        seconds = {width: total / count for width, (total, count) in self._verifying.items()}
        if not isnan(self._plain_s):
            seconds = dict.fromkeys([1, *self._shared_widths], self._plain_s) | seconds
        if not seconds:
            return None
        widths = sorted(seconds)
        return TableProfile(widths, [seconds[width] for width in widths], whose=whose, extrapolate=extrapolate)


@dataclass(frozen=True, slots=True)
class _Drafting:
    """Sums over one answer's rounds: of seconds, of accepted tokens, of the most and the least drafted tokens."""

    num_rounds: int
    seconds: float
    accepted: float
    most: float
    least: float


def _token_s(answers: list[_Drafting]) -> float:
    """By the slope of mean seconds by mean accepted tokens, answers weighted by their rounds, within its bounds."""
    lower = _least_token_s(answers)
    upper = sum(answer.seconds for answer in answers) / max(1.0, sum(answer.least for answer in answers))
    if upper == lower:
        return lower
    weight = np.array([answer.num_rounds for answer in answers], np.float64)
    kept = np.array([answer.accepted for answer in answers]) / weight
    taken = np.array([answer.seconds for answer in answers]) / weight
    apart = kept - np.average(kept, weights=weight)
    spread = float((weight * apart**2).sum())
    slope = float((weight * apart * taken).sum()) / spread if spread > 0 else 0.0
    return min(max(lower, slope), upper)


def _least_token_s(answers: list[_Drafting]) -> float:
    """If every round had drafted its whole window."""
    return sum(answer.seconds for answer in answers) / max(1.0, sum(answer.most for answer in answers))


class TimedCost(CostModel):
    """Seconds of recorded rounds, and their means for all else.

    A round recorded with its own `draft_s` and `verify_s` costs these. Where the log has seconds of whole answers only,
    every round of the answer takes an equal share of them, after the prefill if that is known; of that share the
    target's forward takes the seconds of a step of the target alone in the same request (the recording's mean where
    this request has none), and drafting takes the rest. An answer whose rounds were faster than steps of the target
    alone counts as drafted in no time, so that shares always add up to the measured seconds.

    Everything else is a mean, times the ratio of the same drafter's rounds of the same request to it, so that a window
    next to the recorded one takes about the same (`round_scale`). The target's is by new tokens of a forward,
    interpolated between the measured widths (drafted + 1, and 1 for the target alone); a drafter's is seconds of a
    drafted token, estimated where the log lacks the number of drafted tokens (`RoundMeans`).

    Raises:
        ValueError: a recording without seconds of any answer or round.
        CostRangeError: by `forward_s`, more than one row, a width or a member that was not measured.
    """

    knows_rounds = True

    def __init__(self, recording: RoundsRecording, *, extrapolate: bool = False) -> None:
        if not recording.timed:
            raise ValueError(f"cost {TIMED}: {recording.meta.name} holds no seconds, neither of rounds nor of answers")
        self.name = TIMED
        self._target = recording.meta.target
        self._requests = {request.request_id: request for request in recording.requests}
        self._extrapolate = extrapolate
        drafters = recording.meta.drafters
        self._prefilled = {info.name for info in drafters if info.prefilled}
        if len(self._prefilled) == len(drafters):
            self._prefilled.add(TARGET_ALONE)
        timed = [request for request in recording.requests if not isnan(self._own_plain_s(request))]
        steps = sum(map(self._plain_steps, timed))
        plain_s = sum(self._own_plain_s(request) * self._plain_steps(request) for request in timed)
        self._plain_s = plain_s / steps if steps else nan  # mean over all steps of the target alone
        self._rounds: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
        most_accepted: dict[str, int] = {}
        for _, drafter, rounds in _all_rounds(recording):
            most_accepted[drafter] = max(most_accepted.get(drafter, 1), int(rounds.accepted.max()))
        self._windows = windows = {
            info.name: info.window or most_accepted.get(info.name, 1) for info in recording.meta.drafters
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
        """Seconds of one forward; see `CostModel`. The means contain tokens held, and a drafter's new tokens."""
        if num_rows > 1:
            raise CostRangeError(
                f"cost {TIMED}: measured with one request at a time, asked for {num_rows}",
                "use `batch` 1, or another cost",
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
        request = self._requests[request_id]
        if drafter == TARGET_ALONE:
            if not start and self._starts_by_prefill(request, TARGET_ALONE):
                return 0.0, 0.0
            plain_s = self._own_plain_s(request)
            return None if isnan(plain_s) or start >= request.num_tokens[TARGET_ALONE] else (0.0, plain_s)
        known = self._rounds.get((request_id, drafter))
        if known is None:
            known = self._rounds[request_id, drafter] = {}
            if (rounds := request.rounds.get(drafter)) is not None:
                split = self._split(request, drafter, rounds)
                seconds = zip(rounds.start.tolist(), split.draft_s.tolist(), split.verify_s.tolist(), strict=True)
                known.update((at, (draft, verify)) for at, draft, verify in seconds if isfinite(draft + verify))
        return known.get(start)

    def round_scale(self, request_id: str, drafter: str) -> RoundScale:
        scale = self._scales.get((request_id, drafter))
        if scale is None:
            scale = self._scales[request_id, drafter] = self._scale(self._requests[request_id], drafter)
        return scale

    def round_shape(self, request_id: str, start: int, drafter: str) -> tuple[int, int]:
        """(tokens drafted, tokens held before the round) of a recorded round, where the log has them.

        If the number of drafted tokens is unknown, it is the drafter's window; if the length of the prompt is unknown,
        it is 0.
        """
        request = self._requests[request_id]
        rounds = request.rounds.get(drafter)
        held = request.prompt_tokens + start
        if rounds is None:
            return 0, held
        drafted = int(rounds.drafted[np.searchsorted(rounds.start, start)])
        return self._windows[drafter] if drafted < 0 else drafted, held

    def prefill_s(self, request_id: str, method: str) -> float:
        """Seconds before the first round; see `CostModel`.

        The share of a step where the prefill wrote a token, and only the seconds of the whole answer are known.
        """
        request = self._requests[request_id]
        rounds = request.rounds.get(method)
        if method in request.prefill_s or rounds is None or method not in self._prefilled or rounds.draft_s is not None:
            return request.prefill_s.get(method, 0.0)
        share = self._shared_s(request, method, rounds)
        return 0.0 if isnan(share) else share

    def notes(self) -> tuple[str, ...]:
        notes = list(extrapolation_notes([self._target] if self._verifying and self._verifying.extrapolated else []))
        if self._shared:
            notes.append(f"rounds take equal shares of an answer's measured seconds: {', '.join(self._shared)}")
        if self._estimated:
            notes.append(f"drafted tokens unknown, seconds of one are estimated: {', '.join(self._estimated)}")
        return tuple(notes)

    def _scale(self, request: RoundsRequest, drafter: str) -> RoundScale:
        """Measured over mean seconds of the drafter's rounds in the request; 1 where it has none."""
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
        if drafter in self._most_draft_s:  # drafted tokens are unknown here, only the seconds are known
            return RoundScale(1.0, verifying, draft_s / int(timed.sum()))
        mean_draft_s = self._drafting_s[drafter] * int(drafted.sum())
        return RoundScale(draft_s / mean_draft_s if draft_s and mean_draft_s else 1.0, verifying, inf)

    def _split(self, request: RoundsRequest, drafter: str, rounds: Rounds) -> SplitRounds:
        if rounds.draft_s is not None and rounds.verify_s is not None:
            return SplitRounds(draft_s=rounds.draft_s, verify_s=rounds.verify_s, shared=False)
        round_s = self._shared_s(request, drafter, rounds)
        plain_s = self._own_plain_s(request)
        if isnan(plain_s):
            plain_s = self._plain_s
        # Without seconds of the target alone only whole rounds are known.
        verify_s = round_s if isnan(plain_s) else min(plain_s, round_s)
        each = np.ones(len(rounds.start))
        return SplitRounds(draft_s=(round_s - verify_s) * each, verify_s=verify_s * each, shared=True)

    def _shared_s(self, request: RoundsRequest, method: str, rounds: Rounds) -> float:
        """Seconds of each step of a timed answer, NaN if it was not timed.

        Tokens outside rounds are steps of their own, except that of a prefill with known seconds.
        """
        seconds = request.seconds(method) - request.prefill_s.get(method, 0.0)
        length = request.length(method)
        outside = length - int(np.minimum(rounds.accepted + 1, length - rounds.start).sum())
        outside -= self._starts_by_prefill(request, method)
        return seconds / max(len(rounds.start) + max(0, outside), 1)

    def _starts_by_prefill(self, request: RoundsRequest, method: str) -> bool:
        """Whether a prefill with known seconds wrote the first token, so that no step did."""
        return method in self._prefilled and method in request.prefill_s

    def _plain_steps(self, request: RoundsRequest) -> int:
        return request.num_tokens.get(TARGET_ALONE, 0) - self._starts_by_prefill(request, TARGET_ALONE)

    def _own_plain_s(self, request: RoundsRequest) -> float:
        """Seconds of a step of the target alone in this request, NaN if unknown."""
        seconds = request.seconds(TARGET_ALONE) - request.prefill_s.get(TARGET_ALONE, 0.0)
        steps = self._plain_steps(request)
        return seconds / steps if steps else nan


def _all_rounds(recording: RoundsRecording) -> Iterator[tuple[RoundsRequest, str, Rounds]]:
    for request in recording.requests:
        for drafter, rounds in request.rounds.items():
            if len(rounds.start):
                yield request, drafter, rounds
