"""The loop of a draft: one forward per token, for all requests that still write.

Letters: B requests, N of them still writing, V vocabulary.
"""

from collections.abc import Sequence
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from ...decoding.rules.signal import Signal
from ..state.request_state import signals
from .captured_draft_loop import write_captured
from .executor import Executor
from .sampler import Sampler
from .writing import Writing


def write(executor: Executor, sampler: Sampler, level: int, writings: Sequence[Writing]) -> None:
    """Fill `tokens` of every writing; there must be room for all in the member's cache.

    Args:
        executor: runs the member.
        sampler: chooses the tokens.
        level: of the member.
        writings: in the order of the cache's rows.
    """
    running = write_captured(executor, sampler, level, writings)
    if running:
        go_on(executor, sampler, level, running, first_logits(executor, level, running))


def first_logits(executor: Executor, level: int, writings: Sequence[Writing]) -> Tensor:
    """`[B, V]` after the texts of requests, which the member reads; otherwise as `write`."""
    states = [writing.state for writing in writings]
    last = _last(executor.device(level), writings)
    return executor.feed(level, states, [writing.feed for writing in writings], last)


def go_on(executor: Executor, sampler: Sampler, level: int, running: Sequence[Writing], logits: Tensor) -> None:
    """As `write`, from the logits `[B, V]` on that each request's first token is chosen from."""
    while True:
        going, written = choose(executor, sampler, running, logits)
        if not going:
            return
        if len(going) < len(running):
            running = [running[index] for index in going]
            written = written[going]
        for writing in running:
            writing.state.fed[level].append(writing.tokens[-1])
        states = [writing.state for writing in running]
        logits = executor.feed_ids(level, states, [1] * len(running), written, slice(None))


def choose(
    executor: Executor, sampler: Sampler, running: Sequence[Writing], logits: Tensor
) -> tuple[list[int], Tensor]:
    """Write a token of every request, chosen from `[B, V]`; returns the indices of those that go on, and `[B]` tokens.

    The tokens of those that do not go on may be none.
    """
    start_s = executor.clock.now_s()
    rows = sampler.distributions(logits)
    states = [writing.state for writing in running]
    written, best = sampler.write(rows, states, [writing.position + len(writing.tokens) for writing in running])
    tokens, scores = written.tolist(), best.tolist()
    asks = any(writing.stop is not None for writing in running)
    going = _take(running, rows, tokens, scores, _said(rows, tokens, scores) if asks else None)
    executor.phases.sampling_s += executor.clock.now_s() - start_s
    return going, written


def _last(device: torch.device, writings: Sequence[Writing]) -> slice | Tensor:
    """Which of the packed tokens are the last of their requests."""
    if len(writings) == 1:
        return slice(-1, None)
    ends = np.cumsum([len(writing.feed) for writing in writings])
    return torch.from_numpy(ends - 1).to(device)


def _take(
    running: Sequence[Writing], rows: Tensor, tokens: list[int], best: list[float], said: list[Signal | None] | None
) -> list[int]:
    """Hand every request its token; returns the indices of those that go on."""
    going = []
    for index, (writing, row) in enumerate(zip(running, rows.unbind(), strict=True)):
        if not isfinite(best[index]):
            writing.broken = True
        elif writing.take(tokens[index], row, None if said is None else said[index]):
            going.append(index)
    return going


def _said(rows: Tensor, tokens: list[int], best: list[float]) -> list[Signal | None]:
    """What `[N, V]` distributions say of one token each; None where they are not finite."""
    said: list[Signal | None] = [None] * len(tokens)
    known = [index for index, score in enumerate(best) if isfinite(score)]
    if known:
        chosen = rows if len(known) == len(tokens) else rows[known]
        for index, signal in zip(known, signals(chosen, [tokens[index] for index in known]), strict=True):
            said[index] = signal
    return said
