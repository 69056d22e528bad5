"""Lets a drafter that reads hidden states read texts: at once as far as the target has judged, then token by token.

Beyond the judged tokens it reads its own state of the token before, which takes the forward before.
Letters: B requests, N contexts of all of them, T tokens of one forward, W hidden size, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .draft import choose
from .executor import Executor, Writing, kept_last
from .sampler import Sampler
from .state import RequestState


@dataclass(slots=True, kw_only=True)
class Reading:
    """One request's part in a text that is read; mutated forward by forward."""

    state: RequestState
    now: list[int]  # tokens of the next forward
    later: list[int]  # tokens after them, one a forward

    def go_on(self, written: int | None = None) -> None:
        """The next forward reads the next token: one of `later`, or what was written after all of them."""
        self.now = [self.later.pop(0) if written is None else written]


class FeatureReader:
    """Runs the member at `level`. Mutates its cache and what is known of states."""

    def __init__(self, level: int, executor: Executor) -> None:
        self._level = level
        self._executor = executor

    def write(self, sampler: Sampler, writings: Sequence[Writing]) -> None:
        """Fill `tokens` of every writing, which are in the order of the cache's rows, with room there for all."""
        running = [(writing, self._begin(writing.state, writing.feed)) for writing in writings]
        while running:
            logits = self._forward([reading for _, reading in running])
            due = [place for place, (_, reading) in enumerate(running) if not reading.later]
            written: dict[int, int | None] = {place: None for place in range(len(running)) if place not in due}
            if due:
                asked = [running[place][0] for place in due]
                going, chosen = choose(self._executor, sampler, asked, logits[due])
                tokens = chosen.tolist()
                written |= {due[index]: tokens[index] for index in going}
            running = [pair for place, pair in enumerate(running) if place in written]
            for (_, reading), token in zip(running, [written[place] for place in sorted(written)], strict=True):
                reading.go_on(token)

    def contexts(self, states: Sequence[RequestState], feeds: Sequence[list[int]], counts: Sequence[int]) -> Tensor:
        """`[N, V]` logits after the last `counts[i]` tokens of each request, in the order of the cache's rows."""
        kept: list[list[Tensor]] = [[] for _ in states]
        running = [(place, self._begin(state, feeds[place])) for place, state in enumerate(states)]
        while running:
            logits = self._forward([reading for _, reading in running])
            for row, (place, reading) in zip(logits.unbind(), running, strict=True):
                if len(reading.later) < counts[place]:
                    kept[place].append(row)
            running = [pair for pair in running if pair[1].later]
            for _, reading in running:
                reading.go_on()
        return torch.stack([row for rows in kept for row in rows])

    def _begin(self, state: RequestState, feed: list[int]) -> Reading:
        session = state.session
        state.known.begin(session.num_judged, session.context_tokens - len(feed))
        count = state.at_once(self._level, len(feed))
        return Reading(state=state, now=feed[:count], later=feed[count:])

    def _forward(self, readings: Sequence[Reading]) -> Tensor:
        """`[B, V]` logits after what is read now."""
        level, executor = self._level, self._executor
        states, fed = [reading.state for reading in readings], [reading.now for reading in readings]
        starts = [len(state.fed.get(level, [])) for state in states]
        judged = [state.session.num_judged for state in states]
        before = [
            state.known.before(start, len(tokens), known)
            for state, start, tokens, known in zip(states, starts, fed, judged, strict=True)
        ]
        keep = kept_last(executor.device(level), fed, [1] * len(fed))
        logits, own = executor.feed_after(level, states, fed, torch.cat(before), keep)
        for state, start, tokens, known, row in zip(states, starts, fed, judged, own.unbind(), strict=True):
            state.known.put_own(start + len(tokens) - 1, row, known)
        return logits
