"""Requests of an imported recording to the columns that are stored.

Letters: Q requests, R rounds, as in `columns`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..folder import REQUESTS, ROUNDS
from .columns import SECONDS, RoundsColumns
from .rounds import MOST, Rounds, RoundsRequest

_COUNTS = ("start", "accepted", "drafted")
_KINDS = dict.fromkeys(_COUNTS, np.int32) | dict.fromkeys(SECONDS, np.float64) | {"placed": np.bool_}


def gather(requests: Sequence[RoundsRequest], path: Path) -> RoundsColumns:
    """The columns of requests of a recording that is to lie at `path`.

    Raises:
        TraceFormatError: an array of another shape or type, a count that is none, seconds of a method without a length.
    """
    for request in requests:
        _check_types(request, path)
    answers = [(request, method) for request in requests for method in request.num_tokens]
    segments = [rounds for request in requests for rounds in request.rounds.values()]
    return RoundsColumns(
        request_id=[request.request_id for request in requests],
        tag=[request.tag for request in requests],
        prompt_tokens=_numbers([request.prompt_tokens for request in requests]),
        prompt=_numbers([token for request in requests for token in request.prompt]),
        num_prompt=_numbers([len(request.prompt) for request in requests]),
        output=_numbers([token for request in requests for token in request.output]),
        num_output=_numbers([len(request.output) for request in requests]),
        num_methods=_numbers([len(request.num_tokens) for request in requests]),
        methods=[method for _, method in answers],
        num_tokens=_numbers([request.num_tokens[method] for request, method in answers]),
        wall_s=_seconds([(request.wall_s, method) for request, method in answers]),
        prefill_s=_seconds([(request.prefill_s, method) for request, method in answers]),
        num_drafters=_numbers([len(request.rounds) for request in requests]),
        drafters=[drafter for request in requests for drafter in request.rounds],
        num_rounds=_numbers([len(rounds.start) for rounds in segments]),
        **_joined(segments),
    )


def _check_types(request: RoundsRequest, path: Path) -> None:
    """Refuse what would not fit the columns, or would change on the way into them."""
    where = f"(request {request.request_id!r})"
    numbers = {"prompt_tokens": (request.prompt_tokens,), "num_tokens": tuple(request.num_tokens.values())}
    for field, values in (numbers | {"prompt": request.prompt, "output": request.output}).items():
        for value in values:
            if type(value) is not int or not 0 <= value <= MOST:
                raise TraceFormatError(path / REQUESTS, field, f"must be integers in [0, {MOST}] {where}", value)
    for field, seconds in (("wall_s", request.wall_s), ("prefill_s", request.prefill_s)):
        for method, known_s in seconds.items():
            if method not in request.num_tokens:
                raise TraceFormatError(path / REQUESTS, field, f"must name methods of num_tokens {where}", method)
            if not 0.0 < known_s < np.inf:
                rule = f"must be > 0 and finite {where[:-1]}, method {method!r})"
                raise TraceFormatError(path / REQUESTS, field, rule, known_s)
    for drafter, rounds in request.rounds.items():
        _check_arrays(rounds, f"{where[:-1]}, drafter {drafter!r})", path)


def _check_arrays(rounds: Rounds, where: str, path: Path) -> None:
    shape = (rounds.start.size,)
    for name, wanted in _KINDS.items():
        array, kind = getattr(rounds, name), np.dtype(wanted)
        if array is None and name not in _COUNTS:
            continue
        if array.shape != shape or array.dtype != kind:
            rule = f"must be a {kind} array of shape {shape} {where}"
            raise TraceFormatError(path / ROUNDS, name, rule, f"{array.dtype} of shape {array.shape}")


def _numbers(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _seconds(answers: list[tuple[Mapping[str, float], str]]) -> NDArray[np.float64]:
    return np.array([seconds.get(method, np.nan) for seconds, method in answers], dtype=np.float64)


def _joined(segments: list[Rounds]) -> dict[str, Any]:
    """The fields of rounds, one segment after another, NaN or False where one knows none; None if none knows any."""
    found: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        parts = [getattr(rounds, name) for rounds in segments]
        if name in _COUNTS or any(part is not None for part in parts):
            unknown = np.nan if kind is np.float64 else False
            known = [
                np.full(len(rounds.start), unknown) if part is None else part
                for rounds, part in zip(segments, parts, strict=True)
            ]
            found[name] = np.concatenate([np.empty(0, kind), *known])
    return dict.fromkeys(_KINDS) | found
