"""Latencies of the finished requests of a run."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...runs.serving.log import ServingLog
from ...traces.workloads.exact_seconds import PS_PER_S
from ..summary import PERCENTILES, Spread
from .slo.service_levels import ENDS


def latency_spread(log: ServingLog, name: str, among: NDArray[np.bool_]) -> Spread | None:
    """A latency over the finished requests among some; of TPOT, those with several tokens; None without one.

    Args:
        log: of the run.
        name: of the latency, a key of `ENDS`.
        among: `[R]` which requests count.
    """
    since, until = (f"{end}_at_ps" for end in ENDS[name])
    kept = log.finished & among
    if name == "tpot":
        kept &= log.requests["output_tokens"] > 1
    seconds = (log.requests[until] - log.requests[since])[kept] / PS_PER_S
    if name == "tpot":
        seconds = seconds / (log.requests["output_tokens"][kept] - 1)
    return spread_of(float(seconds.mean()), np.percentile(seconds, PERCENTILES).tolist()) if len(seconds) else None


def spread_of(mean: float, percentiles: Sequence[float]) -> Spread:
    """From a mean and the values of PERCENTILES."""
    p50, p90, p95, p99 = percentiles
    return Spread(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99)
