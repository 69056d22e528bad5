"""The loop of a draft: one forward per token, for all requests that still write.

Letters: B requests, N of them still writing, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from ...decoding.rules.draft_stops import Stop
from ...decoding.rules.signal import Signal
from ..state.request_state import RequestState, signals
from .executor import Executor
from .sampler import Sampler


@dataclass(slots=True, kw_only=True)
class Writing:
    """One request's part in a draft; mutated token by token.

    Attributes:
        state: of the request.
        feed: tokens the member's first forward reads.
        most: tokens to write, >= 1.
        position: output position of the first one.
        eos: each ends the draft.
        stop: ends the draft early; None never.
        tokens: written so far.
        rows: per token the distribution `[V]` it was chosen from.
        said: per token what the member said of it, where `stop` asked.
        broken: whether the logits were not finite; then the last token is missing.
    """

    state: RequestState
    feed: list[int]
    most: int
    position: int
    eos: frozenset[int]
    stop: Stop | None = None
    tokens: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    said: list[Signal] = field(default_factory=list)
    broken: bool = False
    _product: float = 1.0

    def take(self, token: int, row: Tensor, signal: Signal | None) -> bool:
        """Note one token; returns whether to go on."""
        self.tokens.append(token)
        self.rows.append(row)
        stopped = False
        if self.stop is not None and signal is not None:
            self.said.append(signal)
            self._product *= signal.prob
            stopped = self.stop.holds(signal, self._product)
        return not stopped and token not in self.eos and len(self.tokens) < self.most


def write(executor: Executor, sampler: Sampler, level: int, writings: Sequence[Writing]) -> None:
    """Fill `tokens` of every writing; there must be room for all in the member's cache.

    Args:
        executor: runs the member.
        sampler: chooses the tokens.
        level: of the member.
        writings: in the order of the cache's rows.
    """
    running = list(writings)
    if not running:
        return
    states = [writing.state for writing in running]
    logits = executor.feed(level, states, [writing.feed for writing in running], _last(executor.device(level), running))
    asks = any(writing.stop is not None for writing in running)
    while True:
        start_s = executor.clock.now_s()
        rows = sampler.distributions(logits)
        written, best = sampler.write(rows, states, [writing.position + len(writing.tokens) for writing in running])
        tokens, scores = written.tolist(), best.tolist()
        going = _take(running, rows, tokens, scores, _said(rows, tokens, scores) if asks else None)
        executor.phases.sampling_s += executor.clock.now_s() - start_s
        if not going:
            return
        if len(going) < len(running):
            running = [running[index] for index in going]
            states = [states[index] for index in going]
            written = written[going]
        for writing in running:
            writing.state.fed[level].append(writing.tokens[-1])
        logits = executor.feed_ids(level, states, [1] * len(running), written, slice(None))


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
