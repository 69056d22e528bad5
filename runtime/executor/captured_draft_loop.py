"""Draft loops that run as one on the device: the host reads what was written once for several tokens.

Letters: B requests, n tokens of a loop, V vocabulary.
"""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np

from ...decoding.results import Forward
from ..graphs.captured_draft import Loop, Written
from ..graphs.feed import Feed, Noise
from ..state.request_state import rounded_signal
from .executor import Executor
from .sampler import Sampler, noise_of
from .writing import Writing

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
        cache, feed, left, Loop(num_tokens, sampler.sampling, asks), _noise(sampler, running, left, num_tokens)
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


def _noise(sampler: Sampler, running: Sequence[Writing], left: Sequence[int], num_tokens: int) -> Noise | None:
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
