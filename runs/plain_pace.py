"""Seconds per token of each request: over those of plain decoding they say whether it thrashed.

A request thrashes when speculation accepts so little that the target alone would have been faster.
"""

import numpy as np
from numpy.typing import NDArray

from .added_seconds import added_seconds, parts_of
from .log import RunLog


def seconds_per_token(log: RunLog) -> dict[str, float]:
    """Seconds per token by request id, after each request's first commit: prefill is not speculation's fault.

    Seconds are those of the operations that the request had a part in, whole, however many requests shared them; parts
    of an `Overlap` that ran at the same time count once (`added_seconds`). An operation in which another request's
    prompt was read counts as the median of its kind and member.
    Requests that emitted nothing after their first commit are left out.
    """
    order = np.argsort(log.steps["request"], kind="stable")
    steps = {name: log.steps[name][order] for name in ("op", "request", "emitted")}
    ids = log.requests["request_id"]
    before = np.cumsum(steps["emitted"]) - steps["emitted"]
    starts = np.searchsorted(steps["request"], steps["request"], side="left")
    later = before > before[starts]
    request = steps["request"][later]
    ops = steps["op"][later]
    ran = ops >= 0  # a Commit is part of no operation
    seconds = np.bincount(request[ran], weights=_without_prompts(log)[ops[ran]], minlength=len(ids))
    tokens = np.bincount(request, weights=steps["emitted"][later], minlength=len(ids))
    return {str(ids[index]): float(seconds[index] / tokens[index]) for index in np.flatnonzero(tokens)}


def _without_prompts(log: RunLog) -> NDArray[np.float64]:
    """Seconds of every operation, those that read a prompt as the median of the others of their kind and member."""
    steps, ops = log.steps, log.ops
    seconds = added_seconds(log)
    ran = steps["op"] >= 0
    members = steps["request"][ran] * len(log.meta["members"]) + steps["level"][ran]
    _, first = np.unique(members, return_index=True)  # steps are in order of time
    reads = np.zeros(len(seconds), dtype=bool)
    reads[steps["op"][ran][first]] = True
    columns = np.stack([ops["level"], ops["kind"], parts_of(log)])
    kinds = np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1)
    for kind in np.unique(kinds[reads]):
        others = seconds[(kinds == kind) & ~reads]
        if len(others):
            seconds[(kinds == kind) & reads] = np.median(others)
    return seconds
