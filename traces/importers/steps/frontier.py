"""Acceptance traces of the Frontier simulator: tokens committed and drafts scheduled, iteration by iteration.

One object in all: `per_request_committed_tokens_per_iteration`, request -> tokens committed by each iteration, the
target's own included, and optionally `per_request_scheduled_draft_tokens_per_iteration`, request -> tokens drafted. The
lists that hold for all requests alike (`committed_tokens_per_iteration`) are no recording of any: refused.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...rounds.rounds import RoundsRequest
from ..drafters import DRAFTER
from ..format import Format, described, having
from ..ongoing import Ongoing
from ..reading.fields import Fields
from ..step_rounds import check_drafted, rounds_at, starts_of

_COMMITTED = "per_request_committed_tokens_per_iteration"
_SCHEDULED = "per_request_scheduled_draft_tokens_per_iteration"
_IDLE = "iterations committed nothing and were left out"


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """One request per entry."""
    for path in files:
        name = ongoing.drafters.name(DRAFTER, path)
        found = ongoing.one_object(path)
        committed = found.nested(_COMMITTED)
        scheduled = found.nested(_SCHEDULED) if _SCHEDULED in found else None
        if scheduled is not None and set(scheduled.values) != set(committed.values):
            odd = sorted(set(scheduled.values) ^ set(committed.values))
            raise found.error(_SCHEDULED, f"must name the requests of {_COMMITTED}", odd[0])
        for request_id in committed.values:
            ongoing.request(committed, request_id, committed.sound("request", request_id))
            drafted = None if scheduled is None else scheduled.counts(request_id, least=0)
            yield _request(ongoing, name, committed, request_id, drafted)


def _request(
    ongoing: Ongoing, name: str, committed: Fields, request_id: str, drafted: NDArray[np.int64] | None
) -> RoundsRequest:
    emitted = committed.counts(request_id, least=0)
    if drafted is not None and len(drafted) != len(emitted):
        rule = f"must hold as many iterations as were scheduled, {len(drafted)}"
        raise committed.error(request_id, rule, f"{len(emitted)} iterations")
    busy = emitted > 0
    if not busy.any():
        raise committed.error(request_id, "must commit at least one token", "none")
    ongoing.findings.note(_IDLE, int(len(busy) - busy.sum()))
    emitted = emitted[busy]
    if drafted is not None:
        drafted = drafted[busy]
        check_drafted(committed, emitted - 1, drafted)
    first = int(ongoing.drafters.prefilled(name))  # its token is in no iteration
    length = int(emitted.sum()) + first
    start = starts_of(emitted) + first
    rounds = rounds_at(ongoing, name, committed, start, emitted - 1, length=length, drafted=drafted)
    return RoundsRequest(request_id=request_id, num_tokens={name: length}, rounds={name: rounds})


FRONTIER = Format(**described("frontier"), read=_read, sees=having(_COMMITTED))
