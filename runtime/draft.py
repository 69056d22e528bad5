"""Runs a Draft: a model writes token by token, a lookup copies, a model with a tokenizer of its own writes text.

A model's first forward reads the tokens of the texts that its cache lacks; then there is one for each token, for all
requests that still write. Of a text in another tokenizer only whole target tokens are drafted. A drafter that reads
hidden states reads a text in one forward as far as the target has judged, then token by token: there it reads its own
state of the token before, which needs the forward before. Letters: B requests, N of them still writing, or N contexts
of all of them, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from ..decoding.legal_steps import DraftEnd, check_copy
from ..decoding.prompt_lookup import looked_up
from ..decoding.results import Drafted, Failed, Rows
from ..decoding.rules import Signal
from ..decoding.session import Session
from ..decoding.steps import PolicyError
from ..decoding.world import DraftItem
from ..traces.meta import GREEDY
from .distances import NonFiniteLogitsError, broken, without_room
from .executor import Executor, RollbackProcessor, Writing, kept_last
from .pools.members import LoadedMember
from .sampler import SameToken, Sampler
from .state import KVMemoryError, PendingView, RequestState, StateManager, signals
from .tokenizers import Alignment


def write(executor: Executor, sampler: Sampler, level: int, writings: Sequence[Writing]) -> None:
    """Fill `tokens` of every writing, in the order of the cache's rows; there must be room in the member's cache."""
    if writings:
        continue_writing(executor, sampler, level, writings, first_logits(executor, level, writings))


def first_logits(executor: Executor, level: int, writings: Sequence[Writing]) -> Tensor:
    """`[B, V]` logits after the texts of requests, which the member reads; otherwise as `write`."""
    states = [writing.state for writing in writings]
    feeds = [writing.feed for writing in writings]
    return executor.feed(level, states, feeds, kept_last(executor.device(level), feeds, [1] * len(feeds)))


def continue_writing(
    executor: Executor, sampler: Sampler, level: int, running: Sequence[Writing], logits: Tensor
) -> None:
    """As `write`, beginning with the logits `[B, V]` of each request's first token."""
    while True:
        going, written = choose(executor, sampler, level, running, logits)
        if not going:
            return
        if len(going) < len(running):
            running = [running[index] for index in going]
            written = written[going]
        states, newest = [writing.state for writing in running], [writing.tokens[-1:] for writing in running]
        logits = executor.feed(level, states, newest, slice(None), ids=written)


def choose(
    executor: Executor, sampler: Sampler, level: int, running: Sequence[Writing], logits: Tensor
) -> tuple[list[int], Tensor]:
    """Write a token of every request, chosen from `[B, V]`; returns indices of those that continue, and `[B]` tokens.

    The tokens of the others may be invalid.
    """
    start_s = executor.clock.now_s()
    states = [writing.state for writing in running]
    rows = sampler.distributions(logits, states)
    written, best = sampler.write(rows, states, [writing.position + len(writing.tokens) for writing in running])
    tokens, scores = written.tolist(), best.tolist()
    asks = any(writing.ends is not None for writing in running)
    heard = _signals_of(rows, tokens, scores, executor.said.get(level)) if asks else [None] * len(tokens)
    going = []
    for index, (writing, row) in enumerate(zip(running, rows.unbind(), strict=True)):
        if not isfinite(scores[index]):
            writing.broken = True
        elif writing.take(tokens[index], row, heard[index]):
            going.append(index)
    executor.phases.sampling_s += executor.clock.now_s() - start_s
    return going, written


def _signals_of(rows: Tensor, tokens: list[int], best: list[float], said: Tensor | None) -> list[Signal | None]:
    """Signals of one token each from `[N, V]` distributions; None where they are not finite. `said` as in `signals`."""
    heard: list[Signal | None] = [None] * len(tokens)
    known = [index for index, score in enumerate(best) if isfinite(score)]
    if known:
        chosen = rows if len(known) == len(tokens) else rows[known]
        for index, signal in zip(known, signals(chosen, [tokens[index] for index in known], said), strict=True):
            heard[index] = signal
    return heard


class ForeignDrafter:
    """Turns drafts of one member into target tokens. Mutates its caches through the state manager only.

    It always drafts greedily: coupled noise is over the target's tokens, and rejection sampling treats its drafts as
    certain (a point mass), which is lossless whatever they are. `eos` are the member's end-of-sequence tokens, may be
    empty; `context_tokens` is the longest text it can read, in its own tokens.
    """

    def __init__(
        self, level: int, manager: StateManager, alignment: Alignment, *, eos: frozenset[int], context_tokens: int
    ) -> None:
        self.sampler = SameToken(GREEDY)
        self._level = level
        self._manager = manager
        self._alignment = alignment
        self._eos = eos
        self._context_tokens = context_tokens

    def writing(self, item: DraftItem) -> Writing:
        """What a request's draft has to read: its text in the member's tokens, beyond the cached ones.

        `most` is below 1 where there is no text to read, or no room to write.
        """
        session, step = item
        state = self._manager.states[session.request_id]
        context = self._alignment.to_other(session.tail(0))
        fed = state.fed.get(self._level, [])
        # The last token is always read again: the draft starts from the logits after it.
        held = max(0, min(num_common(fed, context), len(context) - 1))
        self._manager.roll_back(state, self._level, held)
        room = self._context_tokens - len(context)
        return Writing(
            state=state,
            feed=context[held:],
            most=min(step.tokens, room) if context else 0,
            position=len(session.emitted) + len(session.tokens),
            eos=self._eos,
        )

    def drafted(self, item: DraftItem, writing: Writing) -> list[int]:
        """The drafted target tokens, as many as the request has room for."""
        session, step = item
        tokens = self._alignment.drafted(session.tail(0), writing.tokens)[: min(step.tokens, session.room)]
        return session.until_end(tokens)


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens of the longest common prefix."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


@dataclass(slots=True, kw_only=True)
class FeatureReading:
    """One request's part in a text that is read; mutated forward by forward."""

    state: RequestState
    now: list[int]  # tokens of the next forward
    later: list[int]  # tokens after them, one a forward

    def advance(self, written: int | None = None) -> None:
        """Let the next forward read the next token: one of `later`, or after all of them the written one."""
        self.now = [self.later.pop(0) if written is None else written]


class FeatureReader:
    """Runs the member at `level`. Mutates its cache and the known states."""

    def __init__(self, level: int, executor: Executor) -> None:
        self._level = level
        self._executor = executor

    def write(self, sampler: Sampler, writings: Sequence[Writing]) -> None:
        """Fill `tokens` of every writing; they are in the order of the cache's rows, which have room."""
        running = [(writing, self._begin(writing.state, writing.feed)) for writing in writings]
        while running:
            logits = self._forward([reading for _, reading in running])
            due = [place for place, (_, reading) in enumerate(running) if not reading.later]
            written: dict[int, int | None] = {place: None for place in range(len(running)) if place not in due}
            if due:
                asked = [running[place][0] for place in due]
                going, chosen = choose(self._executor, sampler, self._level, asked, logits[due])
                tokens = chosen.tolist()
                written |= {due[index]: tokens[index] for index in going}
            running = [pair for place, pair in enumerate(running) if place in written]
            for (_, reading), token in zip(running, [written[place] for place in sorted(written)], strict=True):
                reading.advance(token)

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
                reading.advance()
        return torch.stack([row for rows in kept for row in rows])

    def _begin(self, state: RequestState, feed: list[int]) -> FeatureReading:
        session = state.session
        state.known.begin(session.num_judged, session.context_tokens - len(feed))
        count = state.at_once(self._level, len(feed))
        return FeatureReading(state=state, now=feed[:count], later=feed[count:])

    def _forward(self, readings: Sequence[FeatureReading]) -> Tensor:
        """`[B, V]` logits after the tokens that are read now."""
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


class DraftProcessor:
    """Mutates caches and request states, no session.

    `foreign` holds by level members with a tokenizer of their own, `readers` the one that reads the target's states.
    """

    def __init__(
        self,
        members: Sequence[LoadedMember],
        executor: Executor,
        rollback: RollbackProcessor,
        *,
        foreign: Mapping[int, ForeignDrafter],
        readers: Mapping[int, FeatureReader] | None = None,
    ) -> None:
        self._members = members
        self._executor = executor
        self._manager = executor.manager
        self._rollback = rollback
        self._foreign = foreign
        self._readers = readers or {}
        target = members[-1].model
        assert target is not None
        self._vocab_size = int(target.config.vocab_size)

    def run(self, level: int, items: Sequence[DraftItem]) -> Rows[Drafted]:
        """`[B]` what each request drafted, or why not."""
        if self._members[level].model is None:
            return [self._look_up(level, item) for item in items]
        foreign = self._foreign.get(level)
        if self._executor.sharing.on and foreign is None:
            return self._run_sharing(level, items)
        writings = self._writings(level, items) if foreign is None else [foreign.writing(item) for item in items]
        able = [writing for writing in writings if writing.most > 0]
        counts = [writing.state.at_once(level, len(writing.feed)) for writing in able]
        further = [len(writing.feed) - count + writing.most - 1 for writing, count in zip(able, counts, strict=True)]
        refused = self._manager.reserve(level, [writing.state for writing in able], counts, further)
        ready = [writing for writing in able if writing.state.request_id not in refused]
        sampler = self._executor.sampler if foreign is None else foreign.sampler
        reader = self._readers.get(level)
        if reader is None:
            write(self._executor, sampler, level, self._ordered(level, ready))
        else:
            reader.write(sampler, self._ordered(level, ready))
        return [
            without_room(refused[writing.state.request_id])
            if writing.state.request_id in refused
            else self._drafted(level, item, writing)
            for item, writing in zip(items, writings, strict=True)
        ]

    def _run_sharing(self, level: int, items: Sequence[DraftItem]) -> Rows[Drafted]:
        """As `run`, with a prefix cache, in waves: requests reuse prefixes that an earlier wave has read."""
        writings: dict[str, Writing] = {}
        started: dict[str, Tensor] = {}
        refused: dict[str, KVMemoryError | None] = {}
        for wave in self._executor.sharing.waves(level, items):
            found = self._executor.sharing.find(level, [session for session, _ in wave])
            made = self._writings(level, wave)
            writings |= {writing.state.request_id: writing for writing in made}
            fed = [(writing.state, len(writing.feed)) for writing in made]
            further = [writing.most - 1 for writing in made]
            refused |= self._executor.sharing.begin(level, found, fed, further, kept=started)
            asked = [each for each in made if each.state.request_id not in refused]
            ready = self._ordered(level, asked)
            if ready:
                logits = first_logits(self._executor, level, ready)
                started |= {each.state.request_id: row for each, row in zip(ready, logits.unbind(), strict=True)}
                unsound = broken([each.state.request_id for each in ready], logits)
                self._executor.sharing.absorb(level, [each.state for each in asked], unsound)
        # Room for the forwards after the first, which another wave, or the end of one, may have taken.
        more = [writings[name] for name in started if writings[name].most > 1]
        done = [name for name in started if writings[name].most == 1]
        states, further = [each.state for each in more], [each.most - 2 for each in more]
        refused |= self._manager.reserve(level, states, [1] * len(more), further, kept=done)
        going = self._ordered(level, [writings[name] for name in started if name not in refused])
        if going:
            logits = torch.stack([started[each.state.request_id] for each in going])
            continue_writing(self._executor, self._executor.sampler, level, going, logits)
        return [
            without_room(refused[name]) if name in refused else self._drafted(level, item, writings[name])
            for item in items
            for name in [item[0].request_id]
        ]

    def _ordered(self, level: int, writings: Sequence[Writing]) -> list[Writing]:
        order = self._manager.cache(level).in_order([writing.state.request_id for writing in writings])
        return [writings[index] for index in order]

    def _writings(self, level: int, items: Sequence[DraftItem]) -> list[Writing]:
        feeds = self._rollback.before(items, level, verify=False)
        writings = []
        for (session, step), feed in zip(items, feeds, strict=True):
            writing = Writing(
                state=self._manager.states[session.request_id],
                feed=feed,
                most=min(step.tokens, session.room),
                position=len(session.emitted) + len(session.tokens),
                eos=session.eos,
                ends=None if step.stop is None else DraftEnd(session, step),
            )
            writings.append(writing)
        return writings

    def _drafted(self, level: int, item: DraftItem, writing: Writing) -> Drafted | Failed:
        session, _ = item
        if writing.error is not None:
            return Failed(writing.error)
        if writing.broken:
            position = writing.position + len(writing.tokens)
            return Failed(NonFiniteLogitsError(self._members[level].name, session.request_id, position))
        if level in self._foreign:
            tokens = self._foreign[level].drafted(item, writing)
            return self._without_distribution(session, tokens)
        heard: Sequence[Signal | None] = writing.signals or [None] * len(writing.tokens)
        said = self._executor.said.get(level)
        views = [
            PendingView(token, row, said, signal)
            for token, row, signal in zip(writing.tokens, writing.rows, heard, strict=True)
        ]
        return Drafted(writing.tokens, [writing.state.add(view) for view in views])

    def _look_up(self, level: int, item: DraftItem) -> Drafted | Failed:
        """Copy what followed the newest tokens at an earlier occurrence; no forward."""
        session, step = item
        rule = self._members[level].lookup
        assert rule is not None
        try:
            check_copy(session, step, self._vocab_size)
        except PolicyError as error:
            return Failed(error)
        tokens = looked_up(session.tail(0), step=step, room=session.room, rule=rule)
        return self._without_distribution(session, session.until_end(tokens))

    def _without_distribution(self, session: Session, tokens: list[int]) -> Drafted:
        state = self._manager.states[session.request_id]
        return Drafted(tokens, [state.add(PendingView(token, None)) for token in tokens])
