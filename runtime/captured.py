"""Draft loops that run as one on the device: the host reads what was written once for several tokens.

Letters: B requests, n tokens of a loop, V vocabulary.

Verifications that run as one on the device, with the verdicts.

Letters: B requests, K judged tokens of one, N = sum of K + 1 contexts, V vocabulary.
"""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..decoding.results import Forward
from ..decoding.session import Session
from ..decoding.steps import Verify
from .executor import Executor, Writing
from .graphs import Feed, Loop, Noise, Written
from .sampler import Sampler, Verdict, noise_of
from .state import PendingView, RequestState, rounded_signal

# Tokens of a loop at most. A captured loop runs all its forwards, so one that a stop rule may end is short: the rule
# saves forwards, and to ask it costs one wait for the device.
MOST_TOKENS, MOST_WITH_STOP = 8, 2


class _Taken(NamedTuple):
    """What a request took from a loop: forwards it had a part in, new tokens its cache holds, whether it goes on."""

    num_forwards: int
    num_held: int
    going: bool


def write_captured(executor: Executor, sampler: Sampler, level: int, writings: Sequence[Writing]) -> list[Writing]:
    """Write as far as that is captured; returns those that are to be written forward by forward.

    Args:
        executor: runs the member.
        sampler: chooses the tokens.
        level: of the member.
        writings: in the order of the cache's rows; mutated.
    """
    running = list(writings)
    while running:
        going = _loop(executor, sampler, level, running)
        if going is None:
            break
        running = going
    return running


def _loop(executor: Executor, sampler: Sampler, level: int, running: Sequence[Writing]) -> list[Writing] | None:
    """One loop; returns those that go on, None where loops are not captured."""
    draft = executor.forward(level).whole_draft
    if draft is None or not sampler.on_device:
        return None
    left = [writing.most - len(writing.tokens) for writing in running]
    asks = any(writing.stop is not None for writing in running)
    num_tokens = min(max(left), MOST_WITH_STOP if asks else MOST_TOKENS)
    cache = executor.manager.cache(level)
    feed = Feed([writing.state.request_id for writing in running], [writing.feed for writing in running])
    start_s = executor.clock.now_s()
    written = draft(
        cache,
        feed,
        left,
        Loop(num_tokens, sampler.sampling, asks),
        _noise_of_drafts(sampler, running, left, num_tokens),
    )
    if written is None:
        return None
    taken_s = executor.clock.now_s() - start_s
    taken = [_take(writing, written, index, asks=asks) for index, writing in enumerate(running)]
    for writing, took in zip(running, taken, strict=True):
        # The newest token was not read, but for one that broken logits came after.
        end = len(writing.tokens) - (0 if writing.broken else 1)
        executor.note_fed(level, writing.state, [*writing.feed, *writing.tokens[end - took.num_held : end]])
        cache.roll_back(writing.state.request_id, len(writing.state.fed[level]))
        writing.feed = writing.tokens[-1:]
    executor.note_forwards(_forwards(feed, taken, taken_s))
    return [writing for writing, took in zip(running, taken, strict=True) if took.going]


def _take(writing: Writing, written: Written, index: int, *, asks: bool) -> _Taken:
    """Hand a request its tokens until it stops, as the loop forward by forward would."""
    num_tokens = len(written.tokens)
    for step in range(num_tokens):
        if not isfinite(written.best[step][index]):
            writing.broken = True
            return _Taken(step + 1, step, going=False)
        signal = rounded_signal(*written.said[step][index]) if asks else None
        if not writing.take(written.tokens[step][index], written.rows[step, written.at[index]], signal):
            return _Taken(step + 1, step, going=False)
    return _Taken(num_tokens, num_tokens - 1, going=True)


def _noise_of_drafts(
    sampler: Sampler, running: Sequence[Writing], left: Sequence[int], num_tokens: int
) -> Noise | None:
    """`[n, B, V]` of each token's position, zeros beyond a request's last one; None if greedy."""
    if sampler.sampling.mode != "coupled":
        return None
    columns = []
    for writing, most in zip(running, left, strict=True):
        start = writing.position + len(writing.tokens)
        drawn = noise_of(writing.state).rows(range(start, start + min(most, num_tokens)))
        columns.append(np.pad(drawn, ((0, num_tokens - len(drawn)), (0, 0))))
    return np.stack(columns, axis=1)


def _forwards(feed: Feed, taken: Sequence[_Taken], seconds: float) -> list[Forward]:
    """The forwards somebody had a part in, each an equal share of the time; those of stopped rows took time only."""
    num_forwards = max(took.num_forwards for took in taken)
    rows = [sum(took.num_forwards > step for took in taken) for step in range(num_forwards)]
    tokens = [sum(feed.counts), *rows[1:]]
    return [(count, fed, 1, seconds / num_forwards) for count, fed in zip(rows, tokens, strict=True)]


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
    noise = _noise_of_verdicts(rows) if sampler.sampling.mode == "coupled" else None
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


def _noise_of_verdicts(rows: Sequence[Row]) -> Noise:
    """`[N, V]` of each context's position."""
    drawn = []
    for row in rows:
        start = len(row.session.emitted) + row.first
        drawn.append(noise_of(row.state).rows(range(start, start + len(row.views) + 1)))
    return np.concatenate(drawn)
