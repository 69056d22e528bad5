"""The uncertainty of one run's latencies, and of their errors: by sections, five parts of its requests as they arrive.

Requests of a run share its queue, so an interval over single requests would be far too narrow. Fifths of a run are
almost independent. The figure of all requests is the middle of the interval of logarithms; the spread of the fifths
around it, by Student's t, is its width (sectioning: Asmussen & Glynn 2007, Stochastic Simulation, III.5). Figures
themselves are skewed: at 70% load, 74 of 100 intervals of them held the mean p95 of 100 requests in a queue, and 88 of
logarithms; near saturation, where the parts share one busy time, 68 and 80. Beyond it times grow through the run, and
the spread is that growth: a mean TTFT of 0.57 s had 1.1 s of half width, where seeds gave a deviation of 0.02 s.
"""

from dataclasses import asdict, astuple
from math import exp, isfinite

import numpy as np
from numpy.typing import NDArray

from ..runs.serving import ServingLog
from .intervals import Interval, t_quantile
from .serving import ENDS, latency_seconds
from .summary import spread_over

Floats = NDArray[np.float64]
SECTIONS = 5
LEAST_IN_SECTION = 10  # requests; of fewer a percentile is meaningless


def latency_intervals(log: ServingLog) -> dict[str, Interval]:
    """The 95% intervals of mean and percentiles of each latency by flat name, `ttft_s_mean`; empty for few requests.

    One is missing where the figure is 0 in some fifth and not in all.
    """
    found: dict[str, Interval] = {}
    everyone = np.ones_like(log.finished)
    for name in ENDS:
        seconds = latency_seconds(log, name, everyone)
        if len(seconds) >= SECTIONS * LEAST_IN_SECTION:
            parts = np.array([astuple(spread_over(part)) for part in np.array_split(seconds, SECTIONS)])
            whole = asdict(spread_over(seconds))
            widths = half_widths(parts, np.array(list(whole.values()))).tolist()
            for (part, figure), width in zip(whole.items(), widths, strict=True):
                if isfinite(width):
                    ends = figure * exp(-width), figure * exp(width)
                    found[f"{name}_s_{part}"] = Interval(mean=figure, low=ends[0], high=ends[1])
    return found


def half_widths(parts: Floats, whole: Floats) -> Floats:
    """`[F]` half widths of 95% intervals of logarithms, of `[SECTIONS, F]` figures of the parts and `[F]` of all.

    Not finite where a figure is 0 in some part and not in all.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.where(parts == whole, 0.0, np.log(parts / whole))
    found: Floats = t_quantile(SECTIONS - 1) * np.sqrt((apart**2).sum(axis=0) / (SECTIONS * (SECTIONS - 1)))
    return found
