"""By how much each operation moved a run on: parts of an `Overlap` that run at the same time do not add up."""

import numpy as np
from numpy.typing import NDArray

from .log import RunLog


def added_seconds(log: RunLog) -> NDArray[np.float64]:
    """Seconds of each of N operations; of a further part of an `Overlap` those after the parts before it had ended.

    So the operations of one `Overlap` add up to its own seconds, whichever devices they ran on. All others count whole.

    Returns:
        `[N]`, in the order of `log.ops`.
    """
    starts, durations = log.ops["start_s"], log.ops["duration_s"].astype(np.float64)
    part, ends, added = parts_of(log), starts + durations, durations.copy()
    for op in np.flatnonzero(part):
        covered = ends[op - part[op] : op].max()  # the parts of an Overlap stand one after the other
        added[op] = min(durations[op], max(0.0, ends[op] - covered))
    return added


def parts_of(log: RunLog) -> NDArray[np.int64]:
    """`[N]` which part of an `Overlap` each operation is, by its index; 0 for all others."""
    part = np.zeros(len(log.ops["kind"]), dtype=np.int64)
    ran = log.steps["op"] >= 0
    part[log.steps["op"][ran]] = log.steps["part"][ran]
    return part
