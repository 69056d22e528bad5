"""The figures of each class of service levels in a serving run, all replicas together."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....runs.serving.log import UNKNOWN, ServingLog
from ...summary import Spread
from ..latencies import latency_spread
from ..member_metrics import ratio
from .promises import Promises, by_class


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMetrics:
    """One class. None stands where nothing can be said.

    Attributes:
        name: of the class; "" is that of the requests without one.
        requests: that arrived: finished, rejected and unfinished ones.
        output_tokens: of finished requests.
        slo_met: requests that finished and met every promise; None where nothing is promised, as of the two after it.
        slo_share: of all that arrived.
        goodput_per_s: of those that met every promise.
        ttft_s, tpot_s, e2e_s, queue_s: over finished requests.
    """

    name: str
    requests: int
    finished: int
    rejected: int
    unfinished: int
    output_tokens: int
    slo_met: int | None
    slo_share: float | None
    goodput_per_s: float | None
    ttft_s: Spread | None
    tpot_s: Spread | None
    e2e_s: Spread | None
    queue_s: Spread | None


def class_metrics(log: ServingLog, promised: Promises, duration_s: float) -> tuple[ClassMetrics, ...]:
    """The figures of each class, in order of name; none where no request has one."""
    classes = by_class(log)
    if not any(classes):
        return ()
    met = promised.met(log)
    found = []
    for name, among in classes.items():
        kept = int((met & among).sum()) if promised.of(name).promised else None
        found.append(_of_class(log, name, among, kept, duration_s))
    return tuple(found)


def _of_class(
    log: ServingLog, name: str, among: NDArray[np.bool_], kept: int | None, duration_s: float
) -> ClassMetrics:
    columns, finished = log.requests, log.finished & among
    latencies: dict[str, Any] = {
        f"{one}_s": latency_spread(log, one, among) for one in ("ttft", "tpot", "e2e", "queue")
    }
    return ClassMetrics(
        name=name,
        requests=int(among.sum()),
        finished=int(finished.sum()),
        rejected=int((among & (columns["rejected"] != "")).sum()),
        unfinished=int((among & (columns["ended_at_ps"] == UNKNOWN)).sum()),
        output_tokens=int(columns["output_tokens"][finished].sum()),
        slo_met=kept,
        slo_share=None if kept is None else ratio(kept, int(among.sum())),
        goodput_per_s=None if kept is None else ratio(kept, duration_s),
        **latencies,
    )
