"""Counts of an imported recording, and its rules, checked on columns piece by piece.

Letters: Q requests, M answers, S segments (one per drafter that ran on a request), R rounds, as in `columns`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..folder import META, REQUESTS, ROUNDS, ROUNDS_FILES, Rule, check_rules, size_of
from ..meta import MOST
from ..recording import RecordingSummary, by_tag
from .columns import RoundsColumns, spans
from .rounds import OPEN_DRAFTED, TARGET_ALONE, UNKNOWN_DRAFTED, DrafterInfo, Rounds, RoundsMeta, RoundsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSummary:
    """Figures of one method on some requests: a drafter with the target, or the target alone."""

    num_requests: int  # that the method ran on
    num_rounds: int = 0  # recorded, plain steps (nothing drafted) included; 0 for the target alone
    num_plain: int = 0  # of those, plain steps
    num_placed: int = 0  # of those, rounds whose place the log does not say
    # Mean tokens accepted in a recorded round, plus the target's own, counted as in logs, also where the end of the
    # text cuts it; None without rounds.
    tokens_per_round: float | None = None
    # Share of rounds that drafted whose draft was kept whole, 0 to 1; None without any.
    censored_share: float | None = None
    # Share of output positions known from rounds that were not placed, 0 to 1: those where a round starts, if
    # acceptance depends on that, else those where one shows whether the drafter writes the target's token; None without
    # rounds.
    known_share: float | None = None
    token_s: float | None = None  # measured seconds of whole answers per output token; None if not measured
    draft_s: float | None = None  # mean seconds of drafting per round, over rounds that have them; None if none does
    # Mean seconds of the target's forward per round, over rounds that have them; None if none does.
    verify_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsGroup:
    """Requests of one tag, or of all tags."""

    num_requests: int  # in the group
    num_prompt_tokens: int  # in total, as far as known
    # In total: the target's own text, or the first method's where the target never ran alone.
    num_output_tokens: int
    # By drafter in level order; "" is the target alone, last, where its seconds were measured.
    methods: dict[str, MethodSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsSummary(RecordingSummary[RoundsMeta, RoundsGroup]):
    """An imported recording at a glance."""

    num_texts: int  # requests whose output tokens are known


def summary_of(meta: RoundsMeta, requests: Sequence[RoundsRequest], path: Path | None) -> RoundsSummary:
    """Count and average an imported recording; `path` is where it was read from, if it was."""
    return RoundsSummary(
        meta=meta,
        total=_summarise_group(meta, requests),
        by_tag={tag: _summarise_group(meta, group) for tag, group in by_tag(requests).items()},
        num_texts=sum(1 for request in requests if request.output),
        size_bytes=size_of(path, ROUNDS_FILES),
    )


def acceptance_lengths(rounds: Rounds, length: int) -> NDArray[np.int32]:
    """`[R]` tokens of each round in a text of `length` tokens, the target's own included even where the end cuts it."""
    tokens: NDArray[np.int32] = np.minimum(rounds.accepted, length - rounds.start) + 1
    return tokens


def _summarise_group(meta: RoundsMeta, requests: Sequence[RoundsRequest]) -> RoundsGroup:
    methods = {drafter.name: _summarise_drafter(drafter, requests) for drafter in meta.drafters}
    alone = token_s(TARGET_ALONE, requests)
    if alone is not None:
        measured = sum(1 for request in requests if TARGET_ALONE in request.num_tokens)
        methods[TARGET_ALONE] = MethodSummary(num_requests=measured, token_s=alone)
    return RoundsGroup(
        num_requests=len(requests),
        num_prompt_tokens=sum(request.prompt_tokens for request in requests),
        num_output_tokens=sum(request.length(TARGET_ALONE) for request in requests),
        methods=methods,
    )


def _summarise_drafter(drafter: DrafterInfo, requests: Sequence[RoundsRequest]) -> MethodSummary:
    name = drafter.name
    ran = [(request.rounds[name], request.length(name)) for request in requests if name in request.rounds]
    num_rounds = sum(len(rounds.start) for rounds, _ in ran)
    positions = sum(length for _, length in ran)
    tokens = sum(int(acceptance_lengths(rounds, length).sum()) for rounds, length in ran)
    plain = sum(int((rounds.drafted == 0).sum()) for rounds, _ in ran)
    censored = sum(int((rounds.censored(drafter.window) & (rounds.drafted != 0)).sum()) for rounds, _ in ran)
    known = sum(_num_known(drafter, rounds, length) for rounds, length in ran)
    return MethodSummary(
        num_requests=sum(1 for request in requests if name in request.rounds or name in request.num_tokens),
        num_rounds=num_rounds,
        num_plain=plain,
        num_placed=sum(int(rounds.where_placed.sum()) for rounds, _ in ran),
        tokens_per_round=tokens / num_rounds if num_rounds else None,
        censored_share=censored / (num_rounds - plain) if num_rounds > plain else None,
        known_share=known / positions if num_rounds else None,
        token_s=token_s(name, requests),
        draft_s=_mean([rounds.draft_s for rounds, _ in ran]),
        verify_s=_mean([rounds.verify_s for rounds, _ in ran]),
    )


def _num_known(drafter: DrafterInfo, rounds: Rounds, length: int) -> int:
    """Number of output positions known from the rounds."""
    told = ~rounds.where_placed
    if drafter.by_start:
        return int(told.sum())
    starts, judged = rounds.start[told], (rounds.accepted + ~rounds.censored(drafter.window))[told]
    ends = np.minimum(starts + judged, length)
    before = np.concatenate(([0], np.maximum.accumulate(ends)[:-1])) if len(ends) else ends
    return int(np.maximum(ends - np.maximum(starts, before), 0).sum())


def token_s(method: str, requests: Sequence[RoundsRequest]) -> float | None:
    """Measured seconds of a token of answers that `method` wrote; None without any that was timed."""
    measured = [request for request in requests if method in request.wall_s]
    tokens = sum(request.num_tokens[method] for request in measured)
    return sum(request.wall_s[method] for request in measured) / tokens if measured else None


def _mean(parts: Sequence[NDArray[np.float64] | None]) -> float | None:
    known = [values[~np.isnan(values)] for values in parts if values is not None]
    count = sum(len(values) for values in known)
    return sum(float(values.sum()) for values in known) / count if count else None


class RoundsCheck:
    """Checks the pieces of one recording in file order, then the rules that need all of it and its meta."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids: set[str] = set()
        self._named: dict[str, str] = {}
        self._most: dict[tuple[str, str], tuple[int, str]] = {}

    def add(self, columns: RoundsColumns) -> None:
        """Raise for a piece that breaks a rule, alone or with those before it.

        Raises:
            TraceFormatError: see `docs/trace-format.md` for the list.
        """
        for request_id in columns.request_id:
            if not request_id:
                raise TraceFormatError(self._path / REQUESTS, "id", "must not be empty", request_id)
            if request_id in self._ids:
                raise TraceFormatError(self._path / REQUESTS, "id", "must be unique", request_id)
            self._ids.add(request_id)
        for rule, counts in chain(_of_requests(columns), _of_answers(columns)):
            check_rules(self._path / REQUESTS, [rule], partial(_request_at, columns, counts))
        limits = self._check_names(columns)
        check_rules(self._path / ROUNDS, _of_rounds(columns, limits), partial(_round_at, columns))
        for field in ("accepted", "drafted"):
            self._note_most(field, columns)

    def finish(self, meta: RoundsMeta) -> None:
        """Raise for a recording without requests, or one whose meta does not fit."""
        if not self._ids:
            raise TraceFormatError(self._path / REQUESTS, "id", "must name at least one request", [])
        known = {TARGET_ALONE, *meta.drafter_names}
        for name, request_id in self._named.items():
            if name not in known:
                rule = f"must be a drafter of {META}, {list(meta.drafter_names)} (request {request_id!r})"
                raise TraceFormatError(self._path / REQUESTS, "drafters", rule, name)
        for drafter in meta.drafters:
            for field in ("accepted", "drafted"):
                most, request_id = self._most.get((field, drafter.name), (0, ""))
                if drafter.window is not None and most > drafter.window:
                    rule = f"must be at most the window {drafter.window} of drafter {drafter.name!r}"
                    raise TraceFormatError(self._path / ROUNDS, field, f"{rule} (request {request_id!r})", most)

    def _refuse(self, field: str, rule: str, request_id: str, value: object) -> None:
        raise TraceFormatError(self._path / REQUESTS, field, f"{rule} (request {request_id!r})", value)

    def _check_names(self, columns: RoundsColumns) -> NDArray[np.int64]:
        """Names once per request, outputs of the stated length; `[S]` output tokens of each segment's method."""
        limits: list[int] = []
        places = zip(spans(columns.num_methods), spans(columns.num_drafters), strict=True)
        for row, (methods, drafters) in enumerate(places):
            request_id, names, ran = columns.request_id[row], columns.methods[methods], columns.drafters[drafters]
            for field, group in (("methods", names), ("drafters", ran)):
                if len(set(group)) != len(group):
                    self._refuse(field, "must be unique", request_id, list(group))
                for name in group:
                    self._named.setdefault(name, request_id)
            if TARGET_ALONE in ran:
                self._refuse("drafters", "must have names, the target alone drafts nothing", request_id, list(ran))
            lengths = dict(zip(names, columns.num_tokens[methods].tolist(), strict=True))
            length = lengths.get(TARGET_ALONE, next(iter(lengths.values())))
            given = int(columns.num_output[row])
            if given not in (0, length):
                self._refuse("output", f"must hold {length} tokens, as num_tokens says, or none", request_id, given)
            limits += [lengths.get(name, length) for name in ran]
        return np.array(limits, dtype=np.int64)

    def _note_most(self, field: str, columns: RoundsColumns) -> None:
        """Keep the largest value by drafter: windows are known only at the end of an import."""
        filled = np.flatnonzero(columns.num_rounds)
        if not len(filled):
            return
        starts = (np.cumsum(columns.num_rounds) - columns.num_rounds)[filled]
        largest = np.maximum.reduceat(getattr(columns.rounds, field), starts).tolist()
        requests = _request_of_segment(columns)
        for segment, most in zip(filled.tolist(), largest, strict=True):
            key = (field, columns.drafters[segment])
            if key not in self._most or most > self._most[key][0]:
                self._most[key] = (most, columns.request_id[requests[segment]])


def _request_of_segment(columns: RoundsColumns) -> NDArray[np.int64]:
    """`[S]` row of each segment's request."""
    return np.repeat(np.arange(len(columns.request_id)), columns.num_drafters)


def _request_at(columns: RoundsColumns, counts: NDArray[np.int64] | None, place: int) -> str:
    """The request of a value, of which each request has `counts`, or one."""
    row = place if counts is None else int(np.searchsorted(np.cumsum(counts), place, side="right"))
    return f"request {columns.request_id[row]!r}"


def _round_at(columns: RoundsColumns, place: int) -> str:
    ends = np.cumsum(columns.num_rounds)
    segment = int(np.searchsorted(ends, place, side="right"))
    request_id = columns.request_id[int(_request_of_segment(columns)[segment])]
    own = place - int(ends[segment] - columns.num_rounds[segment])
    return f"request {request_id!r}, drafter {columns.drafters[segment]!r}, round {own}"


# A rule, and the number of values of each request, or None for one.
_Counted = tuple[Rule, NDArray[np.int64] | None]


def _of_requests(columns: RoundsColumns) -> Iterator[_Counted]:
    """Prompts of the stated length, tokens that are ids, at least one answer."""
    stated, given, answers = columns.prompt_tokens, columns.num_prompt, columns.num_methods
    yield Rule("prompt_tokens", (stated < 0) | (stated > MOST), "must be >= 0", stated), None
    yield Rule("prompt", (given > 0) & (given != stated), "must hold prompt_tokens tokens or none", given), None
    yield Rule("num_tokens", answers < 1, "must name at least one method", answers), None
    yield Rule("prompt", columns.prompt < 0, "must be >= 0", columns.prompt), given
    yield Rule("output", columns.output < 0, "must be >= 0", columns.output), columns.num_output
    yield Rule("num_tokens", columns.num_tokens < 1, "must be >= 1", columns.num_tokens), answers
    yield Rule("num_rounds", columns.num_rounds < 0, "must be >= 0", columns.num_rounds), columns.num_drafters


def _of_answers(columns: RoundsColumns) -> Iterator[_Counted]:
    """Seconds positive and finite, where known; the prefill within the whole."""
    wall_s, prefill_s = columns.wall_s, columns.prefill_s
    for field, broken, words, values in (
        ("wall_s", (wall_s <= 0) | np.isinf(wall_s), "must be > 0 and finite", wall_s),
        ("prefill_s", (prefill_s <= 0) | np.isinf(prefill_s), "must be > 0 and finite", prefill_s),
        ("prefill_s", prefill_s > wall_s, "must be at most wall_s", prefill_s),
    ):
        method = columns.methods[int(np.argmax(broken))]
        yield Rule(f"{field} of {method!r}", broken, words, values), columns.num_methods


def _of_rounds(columns: RoundsColumns, limits: NDArray[np.int64]) -> Iterator[Rule]:
    """Starts ascend, accepted tokens at most the drafted ones and the output's, `[S]` `limits` of segments; seconds."""
    rounds, limit = columns.rounds, np.repeat(limits, columns.num_rounds)
    start, accepted, drafted = rounds.start, rounds.accepted, rounds.drafted
    yield Rule("start", (start < 0) | (start >= limit), "must lie in the output, 0 to num_tokens - 1", start)
    falling = np.zeros(len(start), dtype=np.bool_)
    falling[1:] = start[1:] <= start[:-1]
    firsts = np.cumsum(columns.num_rounds) - columns.num_rounds
    falling[firsts[columns.num_rounds > 0]] = False
    yield Rule("start", falling, "must ascend strictly from round to round", start)
    yield Rule("accepted", accepted < 0, "must be >= 0", accepted)
    wrong = ~np.isin(drafted, (UNKNOWN_DRAFTED, OPEN_DRAFTED)) & (drafted < accepted)
    yield Rule("drafted", wrong, f"must be >= accepted, or {UNKNOWN_DRAFTED} or {OPEN_DRAFTED} for unknown", drafted)
    beyond = start.astype(np.int64) + accepted > limit
    yield Rule("accepted", beyond, "must end within the output, start + accepted <= num_tokens", accepted)
    for field, seconds in (("draft_s", rounds.draft_s), ("verify_s", rounds.verify_s)):
        if seconds is not None:
            yield Rule(field, (seconds <= 0) | np.isinf(seconds), "must be > 0 and finite", seconds)
