"""Some requests of an imported recording as columns, as stored; `gather` makes them.

Letters: Q requests, M answers (one per method of each request), S segments (one per drafter that ran on a request),
R rounds of all segments.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from .rounds import Rounds, RoundsRequest

SECONDS = ("draft_s", "verify_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsColumns:
    """Requests and all their rounds; the fields mean what they mean in `RoundsRequest` and `Rounds`.

    Attributes:
        request_id: `[Q]`.
        tag: `[Q]`.
        prompt_tokens: `[Q]`.
        prompt: token ids of all requests behind one another.
        num_prompt: `[Q]` of them, how many of each request.
        output: token ids of all requests behind one another.
        num_output: `[Q]` of them, how many of each request.
        num_methods: `[Q]` methods of each request.
        method: `[M]` names, "" for the target alone.
        num_tokens: `[M]`.
        wall_s: `[M]` NaN if unknown.
        prefill_s: `[M]` NaN if unknown.
        num_drafters: `[Q]` segments of each request.
        drafter: `[S]` names.
        num_rounds: `[S]`.
        start: `[R]`.
        accepted: `[R]`.
        drafted: `[R]`.
        draft_s: `[R]` NaN if unknown; None if none is known.
        verify_s: `[R]` NaN if unknown; None if none is known.
        placed: `[R]`; None if none was placed.
    """

    request_id: Sequence[str]
    tag: Sequence[str]
    prompt_tokens: NDArray[np.int64]
    prompt: NDArray[np.int64]
    num_prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    num_output: NDArray[np.int64]
    num_methods: NDArray[np.int64]
    method: Sequence[str]
    num_tokens: NDArray[np.int64]
    wall_s: NDArray[np.float64]
    prefill_s: NDArray[np.float64]
    num_drafters: NDArray[np.int64]
    drafter: Sequence[str]
    num_rounds: NDArray[np.int64]
    start: NDArray[np.int32]
    accepted: NDArray[np.int32]
    drafted: NDArray[np.int32]
    draft_s: NDArray[np.float64] | None
    verify_s: NDArray[np.float64] | None
    placed: NDArray[np.bool_] | None


def rounds_requests(columns: RoundsColumns) -> Iterator[RoundsRequest]:
    """The requests behind validated columns; the arrays of rounds are views, nothing is copied."""
    rounds = list(_rounds(columns))
    places = zip(
        spans(columns.num_prompt),
        spans(columns.num_output),
        spans(columns.num_methods),
        spans(columns.num_drafters),
        strict=True,
    )
    for row, (prompt, output, methods, drafters) in enumerate(places):
        names = columns.method[methods]
        yield RoundsRequest(
            request_id=columns.request_id[row],
            tag=columns.tag[row],
            prompt_tokens=int(columns.prompt_tokens[row]),
            num_tokens=dict(zip(names, columns.num_tokens[methods].tolist(), strict=True)),
            rounds=dict(zip(columns.drafter[drafters], rounds[drafters], strict=True)),
            wall_s=_known(names, columns.wall_s[methods]),
            prefill_s=_known(names, columns.prefill_s[methods]),
            prompt=tuple(columns.prompt[prompt].tolist()),
            output=tuple(columns.output[output].tolist()),
        )


def slices(columns: RoundsColumns, most_rounds: int) -> Iterator[RoundsColumns]:
    """The columns request by request in pieces of about `most_rounds` rounds, so that checks need little memory."""
    size = len(columns.request_id)
    per_request = _sums(columns.num_rounds, columns.num_drafters)
    pieces = np.cumsum(per_request) // most_rounds
    edges = [0, *(np.flatnonzero(np.diff(pieces)) + 1).tolist(), size]
    ends = {
        name: np.concatenate(([0], np.cumsum(counts)))
        for name, counts in (
            ("prompt", columns.num_prompt),
            ("output", columns.num_output),
            ("method", columns.num_methods),
            ("drafter", columns.num_drafters),
            ("round", per_request),
        )
    }
    for low, high in pairwise(edges):
        pieces_of = {name: slice(int(end[low]), int(end[high])) for name, end in ends.items()}
        yield _slice(columns, slice(low, high), pieces_of)


def _slice(columns: RoundsColumns, rows: slice, pieces: Mapping[str, slice]) -> RoundsColumns:
    methods, drafters, rounds = pieces["method"], pieces["drafter"], pieces["round"]
    return RoundsColumns(
        request_id=columns.request_id[rows],
        tag=columns.tag[rows],
        prompt_tokens=columns.prompt_tokens[rows],
        prompt=columns.prompt[pieces["prompt"]],
        num_prompt=columns.num_prompt[rows],
        output=columns.output[pieces["output"]],
        num_output=columns.num_output[rows],
        num_methods=columns.num_methods[rows],
        method=columns.method[methods],
        num_tokens=columns.num_tokens[methods],
        wall_s=columns.wall_s[methods],
        prefill_s=columns.prefill_s[methods],
        num_drafters=columns.num_drafters[rows],
        drafter=columns.drafter[drafters],
        num_rounds=columns.num_rounds[drafters],
        start=columns.start[rounds],
        accepted=columns.accepted[rounds],
        drafted=columns.drafted[rounds],
        draft_s=None if columns.draft_s is None else columns.draft_s[rounds],
        verify_s=None if columns.verify_s is None else columns.verify_s[rounds],
        placed=None if columns.placed is None else columns.placed[rounds],
    )


def _rounds(columns: RoundsColumns) -> Iterator[Rounds]:
    """The rounds of every segment."""
    optional = {name: _known_counts(getattr(columns, name)) for name in SECONDS}
    optional["placed"] = None if columns.placed is None else np.concatenate(([0], np.cumsum(columns.placed)))
    for span in spans(columns.num_rounds):
        views = {
            name: getattr(columns, name)[span]
            for name, counts in optional.items()
            if counts is not None and counts[span.stop] > counts[span.start]
        }
        yield Rounds(start=columns.start[span], accepted=columns.accepted[span], drafted=columns.drafted[span], **views)


def _known_counts(values: NDArray[np.float64] | None) -> NDArray[np.int64] | None:
    """`[R + 1]` how many of the first values are known."""
    return None if values is None else np.concatenate(([0], np.cumsum(~np.isnan(values))))


def spans(counts: NDArray[np.int64]) -> Iterator[slice]:
    """Where each of consecutive pieces of these lengths lies."""
    return (slice(start, end) for start, end in pairwise(accumulate(counts.tolist(), initial=0)))


def _sums(values: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums over consecutive groups of `counts` values."""
    ends = np.concatenate(([0], np.cumsum(values)))
    edges = np.concatenate(([0], np.cumsum(counts)))
    return np.diff(ends[edges])


def _known(names: Sequence[str], seconds: NDArray[np.float64]) -> dict[str, float]:
    pairs = zip(names, seconds.tolist(), strict=True)
    return {name: value for name, value in pairs if value == value}  # NaN differs from itself
