"""Where a replay left its record: from there on it models, and a run of the real models cannot be expected to agree."""

from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from .log import RunLog


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordExit:
    """The first step of a request that was modelled, or whose committed context the record does not hold.

    Attributes:
        request_id: whose step it is.
        step: index among the steps of the request, from 0.
    """

    request_id: str
    step: int


def record_exits(log: RunLog) -> tuple[RecordExit, ...]:
    """One for each request that left the record, in the order of the run; none for a run of real models."""
    owners, modelled, emitted, parts = (log.steps[name] for name in ("request", "modelled", "emitted", "part"))
    found: list[tuple[int, RecordExit]] = []
    for request, (request_id, known) in enumerate(
        zip(log.requests["request_id"].tolist(), log.requests["exact_start"].tolist(), strict=True)
    ):
        rows = np.flatnonzero(owners == request)
        # Further parts of an Overlap began with what had been committed before its first one.
        began = np.maximum.accumulate(np.where(parts[rows] == 0, np.arange(len(rows)), 0))
        committed_before = (np.cumsum(emitted[rows]) - emitted[rows])[began]
        off = modelled[rows] > 0
        if known >= 0:
            off |= committed_before >= known
        if off.any():
            step = int(off.argmax())
            found.append((int(rows[step]), RecordExit(request_id=request_id, step=step)))
    return tuple(left for _, left in sorted(found, key=itemgetter(0)))
