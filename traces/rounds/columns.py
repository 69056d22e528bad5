"""Some requests of an imported recording as columns, named as in the files; `gather` makes them.

Letters: Q requests, M answers (one per method of each request), S segments (one per drafter that ran on a request),
R rounds of all segments.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .rounds import Rounds, RoundsRequest

SECONDS = ("draft_s", "verify_s")
# Of each request so many entries of these fields, the rest of which are one for each request or for each round.
LISTS = {
    "num_prompt": ("prompt",),
    "num_output": ("output",),
    "num_methods": ("methods", "num_tokens", "wall_s", "prefill_s"),
    "num_drafters": ("drafters", "num_rounds"),
}
_ROUNDS = ("start", "accepted", "drafted", *SECONDS, "placed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsColumns:
    """Requests and all their rounds; the fields mean what they mean in `RoundsRequest` and `Rounds`.

    Attributes:
        request_id: `[Q]`.
        tag: `[Q]`.
        prompt_tokens: `[Q]`.
        prompt: token ids of all requests, one after another.
        num_prompt: `[Q]` of them, how many of each request.
        output: token ids of all requests, one after another.
        num_output: `[Q]` of them, how many of each request.
        num_methods: `[Q]` methods of each request.
        methods: `[M]` names, "" for the target alone.
        num_tokens: `[M]`.
        wall_s: `[M]` NaN if unknown.
        prefill_s: `[M]` NaN if unknown.
        num_drafters: `[Q]` segments of each request.
        drafters: `[S]` names.
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
    methods: Sequence[str]
    num_tokens: NDArray[np.int64]
    wall_s: NDArray[np.float64]
    prefill_s: NDArray[np.float64]
    num_drafters: NDArray[np.int64]
    drafters: Sequence[str]
    num_rounds: NDArray[np.int64]
    start: NDArray[np.int32]
    accepted: NDArray[np.int32]
    drafted: NDArray[np.int32]
    draft_s: NDArray[np.float64] | None
    verify_s: NDArray[np.float64] | None
    placed: NDArray[np.bool_] | None


def rounds_requests(columns: RoundsColumns) -> Iterator[RoundsRequest]:
    """The requests of validated columns; the arrays of rounds are views, nothing is copied."""
    rounds = list(_rounds(columns))
    places = zip(
        spans(columns.num_prompt),
        spans(columns.num_output),
        spans(columns.num_methods),
        spans(columns.num_drafters),
        strict=True,
    )
    for row, (prompt, output, methods, drafters) in enumerate(places):
        names = columns.methods[methods]
        yield RoundsRequest(
            request_id=columns.request_id[row],
            tag=columns.tag[row],
            prompt_tokens=int(columns.prompt_tokens[row]),
            num_tokens=dict(zip(names, columns.num_tokens[methods].tolist(), strict=True)),
            rounds=dict(zip(columns.drafters[drafters], rounds[drafters], strict=True)),
            wall_s=_known(names, columns.wall_s[methods]),
            prefill_s=_known(names, columns.prefill_s[methods]),
            prompt=tuple(columns.prompt[prompt].tolist()),
            output=tuple(columns.output[output].tolist()),
        )


def slices(columns: RoundsColumns, most_rounds: int) -> Iterator[RoundsColumns]:
    """The columns request by request in pieces of about `most_rounds` rounds, so that checks need little memory."""
    ends = np.append(0, np.cumsum(columns.num_rounds))
    per_request = np.diff(ends[np.append(0, np.cumsum(columns.num_drafters))])
    counts = {field.name: np.ones_like(per_request) for field in fields(columns)}
    counts |= {name: getattr(columns, count) for count, names in LISTS.items() for name in names}
    counts |= dict.fromkeys(_ROUNDS, per_request)
    ends_of = {name: np.append(0, np.cumsum(count)).tolist() for name, count in counts.items()}
    pieces = np.cumsum(per_request) // most_rounds
    for low, high in pairwise([0, *(np.flatnonzero(np.diff(pieces)) + 1).tolist(), len(per_request)]):
        whole = {name: getattr(columns, name) for name in ends_of}
        parts: dict[str, Any] = {
            name: None if values is None else values[ends_of[name][low] : ends_of[name][high]]
            for name, values in whole.items()
        }
        yield RoundsColumns(**parts)


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


def _known(names: Sequence[str], seconds: NDArray[np.float64]) -> dict[str, float]:
    pairs = zip(names, seconds.tolist(), strict=True)
    return {name: value for name, value in pairs if value == value}  # NaN differs from itself
