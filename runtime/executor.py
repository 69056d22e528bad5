"""Runs one member on a ragged batch: places its tokens, times the forward, returns logits.

Also what a draft writes (`Writing`), and rolling caches back to a request's text without moving data
(`RollbackProcessor`). Letters: B requests, T tokens fed in all, N contexts whose logits are asked for, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from ..decoding.legal_steps import DraftEnd
from ..decoding.results import Forward
from ..decoding.rules import Signal
from ..decoding.session import Session
from ..decoding.steps import PolicyError, Step
from .caches import MemberKV, Placement, Places, TreeRow, on_trees
from .clock import Clock, Mark, between_s, mark
from .features import FeatureForward
from .forward import ModelForward
from .sampler import Sampler
from .state import PrefixSharing, RequestState, StateManager


@dataclass(slots=True, kw_only=True)
class Phases:
    """Seconds of decoding by kind of work; mutated where the work is done."""

    forward_s: float = 0.0  # inside models
    placing_s: float = 0.0  # slots and masks of their caches
    sampling_s: float = 0.0  # from logits to tokens, verdicts and distances

    def __add__(self, other: "Phases") -> "Phases":
        return Phases(
            forward_s=self.forward_s + other.forward_s,
            placing_s=self.placing_s + other.placing_s,
            sampling_s=self.sampling_s + other.sampling_s,
        )


class Executor:
    """Mutates the caches of its state manager and its notes of forwards.

    `forwards` are by level, and `said` where a member writes some tokens only: these, `[K]`, ascending. `sharing`: the
    prefix caches of the run; `reader`: level and forward of the member that reads the target's states (None for none).
    `phases`: seconds since the run began, of the forwards that were read so far.
    """

    def __init__(
        self,
        forwards: Mapping[int, ModelForward],
        manager: StateManager,
        sampler: Sampler,
        clock: Clock,
        sharing: PrefixSharing | None = None,
        reader: tuple[int, FeatureForward] | None = None,
        said: Mapping[int, Tensor] | None = None,
    ) -> None:
        self.manager = manager
        self.said = said or {}
        self.sharing = sharing or PrefixSharing(manager, None)
        self.sampler = sampler
        self.clock = clock
        self._forwards_run: list[Forward] = []
        self._marked: list[tuple[int, int, Mark, Mark, Mark]] = []
        self.phases = Phases()
        self._forwards = forwards
        self._reader = reader

    def twin(self) -> "Executor":
        """Another one for the same members and caches, with its own notes of forwards."""
        return Executor(self._forwards, self.manager, self.sampler, self.clock, self.sharing, self._reader, self.said)

    def device(self, level: int) -> torch.device:
        """Where a member runs."""
        return self._forwards[level].kv_shape.device

    def feed(
        self,
        level: int,
        states: Sequence[RequestState],
        fed: Sequence[list[int]],
        keep: Places,
        *,
        trees: Sequence[TreeRow] | None = None,
        ids: Tensor | None = None,
    ) -> Tensor:
        """`[N, V]` logits after the N tokens to `keep`, of T that are fed: a list to each request.

        Requests are in the order of the cache's rows, which have room (`StateManager.reserve`). `trees` are those of
        each request's tokens; None where they are runs. `ids` `[T]` are the tokens if they are on the device already.
        """
        if ids is None:
            # Through numpy, as `torch.tensor` takes more than twice as long over a short list.
            flat = fed[0] if len(fed) == 1 else list(chain.from_iterable(fed))
            ids = torch.from_numpy(np.array(flat)).to(self.device(level))
        if self._reader is not None and level == self._reader[0]:
            raise ValueError("a member that reads states is fed by feed_after")
        cache, placement, done = self._placed(level, states, fed, trees)
        if self._reader is None or level != max(self._forwards):
            logits = self._forwards[level](ids, placement, cache, keep)
        else:
            logits, hidden = self._forwards[level].with_states(ids, placement, cache, keep)
            for state, part in zip(states, torch.split(hidden, list(placement.counts)), strict=True):
                state.known.put_target(len(state.fed[level]) - len(part), part)
        done()
        return logits

    def feed_after(
        self,
        level: int,
        states: Sequence[RequestState],
        fed: Sequence[list[int]],
        before: Tensor,
        keep: Places,
    ) -> tuple[Tensor, Tensor]:
        """As `feed`, of the member that reads states: `before` holds those before its T tokens, `[T, W]`.

        Returns:
            `[N, V]` logits and `[N, W]` its own states, after the kept tokens. Letter: W hidden size.
        """
        assert self._reader is not None
        ids = torch.tensor([token for tokens in fed for token in tokens], device=self.device(level))
        cache, placement, done = self._placed(level, states, fed)
        logits, own = self._reader[1].after(ids, before, placement, cache, keep)
        done()
        return logits, own[keep]

    def _placed(
        self,
        level: int,
        states: Sequence[RequestState],
        fed: Sequence[list[int]],
        trees: Sequence[TreeRow] | None = None,
    ) -> tuple[MemberKV, Placement, Callable[[], None]]:
        """A forward's cache, its place there, and what notes its seconds once it has run; notes its tokens as fed."""
        cache, device = self.manager.cache(level), self.device(level)
        for state, tokens in zip(states, fed, strict=True):
            held = state.fed.get(level)
            if held is None:
                state.fed[level] = list(tokens)
            else:
                held += tokens
        counts = [len(tokens) for tokens in fed]
        start = mark(device)
        placement = cache.place([state.request_id for state in states], counts)
        if trees is not None:
            placement = on_trees(placement, cache, trees)
        placed = mark(device)
        return cache, placement, lambda: self._marked.append((len(states), sum(counts), start, placed, mark(device)))

    def begin(self) -> None:
        """Begin an operation: forget earlier forwards."""
        self._marked.clear()
        self._forwards_run.clear()

    def forwards_run(self) -> list[Forward]:
        """The forwards of the current operation, oldest first; waits until the device has run them."""
        for rows, tokens, start, placed, end in self._marked:
            self.phases.placing_s += between_s(start, placed)
            self.phases.forward_s += between_s(placed, end)
            self._forwards_run.append((rows, tokens, 1, between_s(start, end)))
        self._marked.clear()
        return self._forwards_run


def kept_last(device: torch.device, feeds: Sequence[Sequence[int]], counts: Sequence[int]) -> slice | Tensor:
    """Indices of the last `counts[i]` packed tokens of each request."""
    if len(feeds) == 1:
        return slice(len(feeds[0]) - counts[0], None)
    kept: list[int] = []
    end = 0
    for feed, count in zip(feeds, counts, strict=True):
        end += len(feed)
        kept.extend(range(end - count, end))
    return torch.from_numpy(np.array(kept, dtype=np.int64)).to(device)


class RollbackProcessor:
    """Mutates the caches of a state manager.

    Args:
        foreign: levels whose caches are in tokens of another tokenizer; they roll back by text when they draft.
        reader: level of the member that reads the target's states; None for none.
        beside: whether other members work for the same requests at the same time; then a verdict touches no cache, and
            the caller rolls them back after all verdicts.
    """

    def __init__(
        self,
        manager: StateManager,
        *,
        foreign: frozenset[int] = frozenset(),
        reader: int | None = None,
        beside: bool = False,
    ) -> None:
        self._manager = manager
        self._foreign = foreign
        self._reader = reader
        self._beside = beside

    def before(self, items: Sequence[tuple[Session, Step]], level: int, *, verify: bool) -> list[list[int]]:
        """Roll a member's cache back to what the next step may use; returns the tokens it must be fed.

        Tokens committed while it did not run are among them. A verifier is fed the position before its first judged
        token again if it held it.
        """
        feeds = []
        for session, _ in items:
            _, held = session.feed(level, verify=verify)
            self._manager.roll_back(self._manager.states[session.request_id], level, held)
            feeds.append(session.tail(held))
        return feeds

    def after(self, state: RequestState, num_tokens: int, *, by_target: bool) -> None:
        """A verifier accepted the first `num_tokens` tokens of a context: no member may hold more.

        The member that reads the target's states used its own states beyond the tokens that the target had judged
        before, and the one after them: it reads those again.
        """
        if self._beside:
            return
        if by_target and self._reader is not None:
            self._manager.roll_back(state, self._reader, min(num_tokens, state.session.num_judged + 1))
        for level, fed in state.fed.items():
            if len(fed) > num_tokens and level not in self._foreign:
                self._manager.roll_back(state, level, num_tokens)


@dataclass(slots=True, kw_only=True)
class Writing:
    """One request's part in a draft; mutated token by token."""

    state: RequestState
    feed: list[int]  # tokens the member's first forward reads
    most: int  # tokens to write, >= 1
    position: int  # output position of the first one
    eos: frozenset[int]  # each ends the draft
    ends: DraftEnd | None = None  # whether the draft ends early; None never
    tokens: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)  # per token the distribution `[V]` it was chosen from
    signals: list[Signal] = field(default_factory=list)  # per token its signal, if `ends` is given
    broken: bool = False  # whether the logits were not finite; then the last token is missing
    error: PolicyError | None = None  # that `ends` raised, for which the request fails alone

    def take(self, token: int, row: Tensor, signal: Signal | None) -> bool:
        """Note one token; returns whether to continue."""
        self.tokens.append(token)
        self.rows.append(row)
        stopped = False
        if self.ends is not None and signal is not None:
            self.signals.append(signal)
            try:
                stopped = self.ends(signal)
            except PolicyError as error:
                self.error, stopped = error, True
        return not stopped and token not in self.eos and len(self.tokens) < self.most
