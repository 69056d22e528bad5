"""Verifications that run as one on the device, with the verdicts.

Letters: B requests, K judged tokens of one, N = sum of K + 1 contexts, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...decoding.contract import Verify
from ...decoding.session import Session
from ..graphs.feed import Feed, Noise
from ..state.request_state import PendingView, RequestState
from .executor import Executor
from .sampler import Verdict, noise_of


class Row(NamedTuple):
    """One request's part in a verification under way.

    Attributes:
        session: read only.
        step: the verification.
        state: of the request.
        feed: tokens its forward reads.
        first: index of the first pending token that is judged.
        views: `[K]` of the judged tokens.
    """

    session: Session
    step: Verify
    state: RequestState
    feed: list[int]
    first: int
    views: list[PendingView]


def verdicts_captured(
    executor: Executor, level: int, rows: Sequence[Row]
) -> tuple[Tensor, list[Verdict | None]] | None:
    """`[N, V]` distributions and `[B]` verdicts; None, with nothing done, where that is not captured.

    Args:
        executor: runs the member; mutated, as by `Executor.feed`.
        level: of the member.
        rows: in the order of the cache's rows; there is room for all.
    """
    verify, sampler = executor.forward(level).whole_verify, executor.sampler
    if verify is None or not sampler.on_device or not all(row.step.rule.lossless for row in rows):
        return None
    feed = Feed([row.state.request_id for row in rows], [row.feed for row in rows])
    noise = _noise(rows) if sampler.sampling.mode == "coupled" else None
    start_s = executor.clock.now_s()
    found = verify(executor.manager.cache(level), feed, [len(row.views) for row in rows], sampler.sampling, noise)
    if found is None:
        return None
    taken_s = executor.clock.now_s() - start_s
    for row in rows:
        executor.note_fed(level, row.state, row.feed)
    executor.note_forwards([(len(rows), sum(feed.counts), 1, taken_s)])
    verdicts = [
        Verdict(accepted, own) if finite else None
        for accepted, own, finite in zip(found.accepted, found.own, found.finite, strict=True)
    ]
    return found.rows, verdicts


def _noise(rows: Sequence[Row]) -> Noise:
    """`[N, V]` of each context's position."""
    drawn = []
    for row in rows:
        start = len(row.session.emitted) + row.first
        drawn.append(noise_of(row.state).rows(range(start, start + len(row.views) + 1)))
    return np.concatenate(drawn)
