"""The log of a serving run: its requests, its replicas over time, and the gaps between outputs, as columns.

Times are whole picoseconds since the start of the workload. Letters: R requests, L levels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..log import Columns
from .meta import ServingMeta

# A time of what did not happen.
UNKNOWN = -1

REQUEST_FIELDS = (
    "request_id",
    "tag",
    "slo",
    "replica",
    "prompt_tokens",
    "output_tokens",
    "emitted_tokens",
    "arrived_at_ps",
    "scheduled_at_ps",
    "first_token_at_ps",
    "ended_at_ps",
    "rejected",
    "cached_tokens",
)
PREEMPTION_FIELDS = ("request", "at_ps")
SERIES_FIELDS = ("replica", "at_ps", "running", "waiting", "used_blocks")
GAP_FIELDS = ("first_ps", "increment_ps", "count", "rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLog:
    """What happened in one serving run.

    Attributes:
        meta: what was run, and its sums.
        requests: one row per request that arrived (REQUEST_FIELDS), in order of arrival. `replica` is an index into
            `meta.replicas`; `output_tokens` were asked for and `emitted_tokens` came out; a time is UNKNOWN where it
            did not come to it; `rejected` is the reason, "" for all others; `cached_tokens` `[R, L]` are those of the
            prompt that each member's prefix cache held when the request was first scheduled. A request has finished if
            it ended and was not rejected.
        preemptions: one row each (PREEMPTION_FIELDS), in order of time; `request` is an index into `requests`.
        series: states of the replicas (SERIES_FIELDS), each from `at_ps` until the next one of its replica, and thinned
            as `states.ReplicaStates` says; `used_blocks` by level.
        gaps: runs of gaps between outputs (GAP_FIELDS): `rows` requests each saw `count` gaps, `first_ps`, `first_ps +
            increment_ps` and so on. Those of requests that did not finish are among them.
    """

    meta: ServingMeta
    requests: Columns
    preemptions: Columns
    series: Columns
    gaps: Columns

    @property
    def finished(self) -> NDArray[np.bool_]:
        """`[R]` whether each request finished."""
        return np.asarray((self.requests["ended_at_ps"] != UNKNOWN) & (self.requests["rejected"] == ""))
