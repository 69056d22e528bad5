"""What must hold of an imported recording, checked on columns piece by piece; the first breach is named.

Letters: Q requests, M answers, S segments (one per drafter that ran on a request), R rounds, as in `columns`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..folder import META, REQUESTS, ROUNDS
from ..meta import MOST
from .columns import RoundsColumns, spans
from .meta import RoundsMeta
from .rounds import OPEN_DRAFTED, TARGET_ALONE, UNKNOWN_DRAFTED

# A field, which of its values are wrong, the rule, the values, and how many there are of each request, or None for one.
_Rule = tuple[str, NDArray[np.bool_], str, NDArray[Any], NDArray[np.int64] | None]


class RoundsCheck:
    """Checks the pieces of one recording in file order, then what only its end and its meta can tell."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids: set[str] = set()
        self._named: dict[str, str] = {}
        self._most: dict[tuple[str, str], tuple[int, str]] = {}

    def add(self, columns: RoundsColumns) -> None:
        """Refuse a piece that breaks a rule by itself or beside those before it.

        Raises:
            TraceFormatError: see `docs/trace-format.md` for the list.
        """
        self._check_ids(columns)
        self._check_values(columns)
        limits = self._check_names(columns)
        piece = _Piece(columns=columns, path=self._path, limits=limits)
        piece.check_starts()
        piece.check_counts()
        piece.check_seconds()
        for field, values in (("accepted", columns.rounds.accepted), ("drafted", columns.rounds.drafted)):
            self._note_most(field, values, piece)

    def finish(self, meta: RoundsMeta) -> None:
        """Refuse a recording without requests, or one that its meta does not fit."""
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

    def _check_values(self, columns: RoundsColumns) -> None:
        """Refuse the first wrong value, if any is; of each request there are `counts`, or one."""
        for field, wrong, rule, values, counts in chain(_rules_of_requests(columns), _rules_of_seconds(columns)):
            if wrong.any():
                place = int(np.argmax(wrong))
                row = place if counts is None else int(np.searchsorted(np.cumsum(counts), place, side="right"))
                self._refuse(field, rule, columns.request_id[row], values[place].item())

    def _check_ids(self, columns: RoundsColumns) -> None:
        for request_id in columns.request_id:
            if not request_id:
                raise TraceFormatError(self._path / REQUESTS, "id", "must not be empty", request_id)
            if request_id in self._ids:
                raise TraceFormatError(self._path / REQUESTS, "id", "must be unique", request_id)
            self._ids.add(request_id)

    def _check_names(self, columns: RoundsColumns) -> NDArray[np.int64]:
        """Names once per request, outputs of the stated length.

        Returns:
            `[S]` output tokens of each segment's method.
        """
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

    def _note_most(self, field: str, values: NDArray[np.int32], piece: "_Piece") -> None:
        """Keep the largest value by drafter: windows are only known at the end of an import."""
        columns = piece.columns
        filled = np.flatnonzero(columns.num_rounds)
        if not len(filled):
            return
        starts = (np.cumsum(columns.num_rounds) - columns.num_rounds)[filled]
        largest = np.maximum.reduceat(values, starts).tolist()
        requests = piece.request_of_segment
        for segment, most in zip(filled.tolist(), largest, strict=True):
            key = (field, columns.drafters[segment])
            if key not in self._most or most > self._most[key][0]:
                self._most[key] = (most, columns.request_id[requests[segment]])


def _rules_of_requests(columns: RoundsColumns) -> Iterator[_Rule]:
    """Prompts of the stated length, tokens that are ids, at least one answer."""
    stated, given, answers = columns.prompt_tokens, columns.num_prompt, columns.num_methods
    yield "prompt_tokens", (stated < 0) | (stated > MOST), "must be >= 0", stated, None
    yield "prompt", (given > 0) & (given != stated), "must hold prompt_tokens tokens or none", given, None
    yield "num_tokens", answers < 1, "must name at least one method", answers, None
    yield "prompt", columns.prompt < 0, "must be >= 0", columns.prompt, given
    yield "output", columns.output < 0, "must be >= 0", columns.output, columns.num_output
    yield "num_tokens", columns.num_tokens < 1, "must be >= 1", columns.num_tokens, answers
    yield "num_rounds", columns.num_rounds < 0, "must be >= 0", columns.num_rounds, columns.num_drafters


def _rules_of_seconds(columns: RoundsColumns) -> Iterator[_Rule]:
    """Positive and finite, where known; the prefill within the whole."""
    wall_s, prefill_s = columns.wall_s, columns.prefill_s
    for field, wrong, rule, values in (
        ("wall_s", (wall_s <= 0) | np.isinf(wall_s), "must be > 0 and finite", wall_s),
        ("prefill_s", (prefill_s <= 0) | np.isinf(prefill_s), "must be > 0 and finite", prefill_s),
        ("prefill_s", prefill_s > wall_s, "must be at most wall_s", prefill_s),
    ):
        method = columns.methods[int(np.argmax(wrong))]
        yield f"{field} of {method!r}", wrong, rule, values, columns.num_methods


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """The rounds of one piece.

    Attributes:
        columns: to check.
        path: of the recording.
        limits: `[S]` output tokens of each segment's method.
    """

    columns: RoundsColumns
    path: Path
    limits: NDArray[np.int64]

    @property
    def request_of_segment(self) -> NDArray[np.int64]:
        """`[S]` row of each segment's request."""
        return np.repeat(np.arange(len(self.columns.request_id)), self.columns.num_drafters)

    def refuse(self, wrong: NDArray[np.bool_], field: str, rule: str, values: NDArray[Any]) -> None:
        """Raise TraceFormatError for the first round that is wrong, if any is."""
        if not wrong.any():
            return
        place = int(np.argmax(wrong))
        ends = np.cumsum(self.columns.num_rounds)
        segment = int(np.searchsorted(ends, place, side="right"))
        request_id = self.columns.request_id[int(self.request_of_segment[segment])]
        own = place - int(ends[segment] - self.columns.num_rounds[segment])
        where = f"(request {request_id!r}, drafter {self.columns.drafters[segment]!r}, round {own})"
        raise TraceFormatError(self.path / ROUNDS, field, f"{rule} {where}", values[place].item())

    def check_starts(self) -> None:
        """Positions of the output, strictly ascending within a segment."""
        start = self.columns.rounds.start
        limit = np.repeat(self.limits, self.columns.num_rounds)
        self.refuse((start < 0) | (start >= limit), "start", "must lie in the output, 0 to num_tokens - 1", start)
        falling = np.zeros(len(start), dtype=np.bool_)
        falling[1:] = start[1:] <= start[:-1]
        firsts = np.cumsum(self.columns.num_rounds) - self.columns.num_rounds
        falling[firsts[self.columns.num_rounds > 0]] = False
        self.refuse(falling, "start", "must ascend strictly from round to round", start)

    def check_counts(self) -> None:
        """No more kept than drafted, or than the output holds."""
        accepted, drafted = self.columns.rounds.accepted, self.columns.rounds.drafted
        self.refuse(accepted < 0, "accepted", "must be >= 0", accepted)
        wrong = ~np.isin(drafted, (UNKNOWN_DRAFTED, OPEN_DRAFTED)) & (drafted < accepted)
        rule = f"must be >= accepted, or {UNKNOWN_DRAFTED} or {OPEN_DRAFTED} for unknown"
        self.refuse(wrong, "drafted", rule, drafted)
        limit = np.repeat(self.limits, self.columns.num_rounds)
        beyond = self.columns.rounds.start.astype(np.int64) + accepted > limit
        self.refuse(beyond, "accepted", "must end within the output, start + accepted <= num_tokens", accepted)

    def check_seconds(self) -> None:
        """Positive and finite, where known."""
        for field in ("draft_s", "verify_s"):
            seconds = getattr(self.columns.rounds, field)
            if seconds is not None:
                self.refuse((seconds <= 0) | np.isinf(seconds), field, "must be > 0 and finite", seconds)
