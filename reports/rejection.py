"""How often verifiers refuse what was drafted, for chains of any depth; the formula is in docs/glossary.md."""

import numpy as np
from numpy.typing import NDArray

from ..decoding.ledger import VERIFY
from ..runs.log import Columns


def rejection_rate(steps: Columns, among: NDArray[np.bool_] | None = None) -> float:
    """Refusals at any level over the drafted tokens that a first verifier looked at.

    A refusal is a verification that refused a token: at most one each. A drafted token is looked at first by the
    verification that comes next in its request; those after the first refused one are not looked at, nor are those
    that a Commit took before. For two levels this is 1 less the rate of acceptance per position. Above two it may
    exceed 1, as a middle verifier's own token can be refused too.

    Args:
        steps: of a run log, each request's in their order; requests of a batch may lie between one another.
        among: `[steps]` which steps count, all of a request or none; None for all.

    Returns:
        The rate, >= 0; 0 if no drafted token was looked at.
    """
    order = np.argsort(steps["request"], kind="stable")
    if among is not None:
        order = order[among[order]]
    requests, drafted = steps["request"][order], steps["drafted"][order]
    ends = np.flatnonzero(steps["kind"][order] == VERIFY)
    judged, accepted = (steps[name][order][ends] for name in ("judged", "accepted"))
    refusals = int((accepted < judged).sum())
    # What nobody has judged was drafted after the request's verification before this one, and stands last.
    starts = np.searchsorted(requests, requests[ends], side="left")
    starts[1:] = np.maximum(starts[1:], ends[:-1] + 1)
    before = np.concatenate([[0], np.cumsum(drafted)])
    fresh = np.minimum(before[ends] - before[starts], judged)
    looked_at = int(np.maximum(np.minimum(accepted + 1, judged) - (judged - fresh), 0).sum())
    return refusals / looked_at if looked_at else 0.0
