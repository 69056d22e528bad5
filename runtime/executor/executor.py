"""Runs one member on a ragged batch: places its tokens, times the forward, hands back logits.

Letters: B requests, T tokens fed in all, N contexts whose logits are asked for, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from ...decoding.results import Forward
from ..features.feature_forward import FeatureForward
from ..forward.model_forward import ModelForward
from ..kv.placement import Placement
from ..state.prefix_sharing import PrefixSharing
from ..state.request_state import RequestState
from ..state.state_manager import StateManager
from ..timing.clock import Clock, Mark, between_s, mark
from ..trees.tree_placement import TreeRow, on_trees
from .sampler import Sampler


@dataclass(slots=True, kw_only=True)
class Phases:
    """Seconds of decoding by kind of work; mutated by whoever does it.

    Attributes:
        forward_s: inside models.
        placing_s: slots and masks of their caches.
        sampling_s: from logits to tokens, verdicts and distances.
    """

    forward_s: float = 0.0
    placing_s: float = 0.0
    sampling_s: float = 0.0

    def __add__(self, other: "Phases") -> "Phases":
        return Phases(
            forward_s=self.forward_s + other.forward_s,
            placing_s=self.placing_s + other.placing_s,
            sampling_s=self.sampling_s + other.sampling_s,
        )


class Executor:
    """Mutates the caches of its state manager and what it notes of forwards.

    Args:
        forwards: by level, the members that have a model.
        manager: caches and requests.
        sampler: of the run.
        clock: measures.
        sharing: the prefix caches of the run; None for none.
        reader: level and forward of the member that reads the target's states; None for none.

    Attributes:
        phases: seconds since the beginning of the run, of forwards whose marks were read.
    """

    def __init__(
        self,
        forwards: Mapping[int, ModelForward],
        manager: StateManager,
        sampler: Sampler,
        clock: Clock,
        sharing: PrefixSharing | None = None,
        reader: tuple[int, FeatureForward] | None = None,
    ) -> None:
        self.manager = manager
        self.sharing = sharing or PrefixSharing(manager, None)
        self.sampler = sampler
        self.clock = clock
        self._forwards_run: list[Forward] = []
        self._marked: list[tuple[int, int, Mark, Mark, Mark]] = []
        self.phases = Phases()
        self._forwards = forwards
        self._reader = reader

    def twin(self) -> "Executor":
        """Another one of the same members and caches, which notes its own forwards."""
        return Executor(self._forwards, self.manager, self.sampler, self.clock, self.sharing, self._reader)

    def device(self, level: int) -> torch.device:
        """Where a member runs."""
        return self._forwards[level].kv_shape.device

    def forward(self, level: int) -> ModelForward:
        """How a member runs."""
        return self._forwards[level]

    def feed(
        self,
        level: int,
        states: Sequence[RequestState],
        fed: Sequence[list[int]],
        keep: slice | Tensor,
        *,
        trees: Sequence[TreeRow] | None = None,
    ) -> Tensor:
        """Feed each request a list of tokens; there must be room (`StateManager.reserve`).

        Args:
            level: of the member.
            states: of the requests, in the order of the cache's rows.
            fed: to each.
            keep: the tokens whose logits are wanted.
            trees: of each request, how its tokens hang together; None where they are runs.

        Returns:
            `[N, V]` logits after the kept of the T tokens.
        """
        # Through numpy, as `torch.tensor` takes more than twice as long over a short list.
        flat = fed[0] if len(fed) == 1 else list(chain.from_iterable(fed))
        ids = torch.from_numpy(np.array(flat)).to(self.device(level))
        for state, tokens in zip(states, fed, strict=True):
            self.note_fed(level, state, tokens)
        return self.feed_ids(level, states, [len(tokens) for tokens in fed], ids, keep, trees=trees)

    def note_fed(self, level: int, state: RequestState, tokens: Sequence[int]) -> None:
        """A member's cache holds so many more tokens of a request."""
        held = state.fed.get(level)
        if held is None:
            state.fed[level] = list(tokens)
        else:
            held += tokens

    def feed_ids(
        self,
        level: int,
        states: Sequence[RequestState],
        counts: Sequence[int],
        ids: Tensor,
        keep: slice | Tensor,
        *,
        trees: Sequence[TreeRow] | None = None,
    ) -> Tensor:
        """As `feed`, for tokens `[T]` that are on the device already and noted in `state.fed`."""
        cache, device = self.manager.cache(level), self.device(level)
        start = mark(device)
        placement = cache.place([state.request_id for state in states], counts)
        if trees is not None:
            placement = on_trees(placement, cache, trees)
        placed = mark(device)
        if self._reader is None:
            logits = self._forwards[level](ids, placement, cache, keep)
        else:
            logits = self._feed_beside(level, states, counts, ids, placement, keep)
        self._marked.append((len(states), sum(counts), start, placed, mark(device)))
        return logits

    def _feed_beside(
        self,
        level: int,
        states: Sequence[RequestState],
        counts: Sequence[int],
        ids: Tensor,
        placement: Placement,
        keep: slice | Tensor,
    ) -> Tensor:
        """`[N, V]` logits in a pool with a member that reads the target's states: these are kept."""
        assert self._reader is not None
        if level == self._reader[0]:
            raise ValueError("a member that reads states is fed by feed_after")
        forward, cache = self._forwards[level], self.manager.cache(level)
        if level != max(self._forwards):
            return forward(ids, placement, cache, keep)
        logits, hidden = forward.with_states(ids, placement, cache, keep)
        for state, part in zip(states, torch.split(hidden, list(counts)), strict=True):
            state.known.put_target(len(state.fed[level]) - len(part), part)
        return logits

    def feed_after(
        self,
        level: int,
        states: Sequence[RequestState],
        fed: Sequence[list[int]],
        before: Tensor,
        keep: slice | Tensor,
    ) -> tuple[Tensor, Tensor]:
        """As `feed`, of the member that reads states: `before` holds those before its T tokens, `[T, W]`.

        Returns:
            `[N, V]` logits and `[N, W]` its own states, after the kept tokens. Letter: W hidden size.
        """
        assert self._reader is not None
        cache, device = self.manager.cache(level), self.device(level)
        ids = torch.tensor([token for tokens in fed for token in tokens], device=device)
        for state, tokens in zip(states, fed, strict=True):
            self.note_fed(level, state, tokens)
        start = mark(device)
        placement = cache.place([state.request_id for state in states], [len(tokens) for tokens in fed])
        placed = mark(device)
        logits, own = self._reader[1].after(ids, before, placement, cache, keep)
        self._marked.append((len(states), len(ids), start, placed, mark(device)))
        return logits, own[keep]

    def note_forwards(self, forwards: Sequence[Forward]) -> None:
        """These ran, timed by whoever ran them."""
        self.phases.forward_s += sum(seconds for *_, seconds in forwards)
        self.forwards_run()
        self._forwards_run += forwards

    def begin(self) -> None:
        """An operation begins: no forward of it has run."""
        self._marked.clear()
        self._forwards_run.clear()

    def forwards_run(self) -> list[Forward]:
        """The forwards of the operation under way, oldest first; waits for the device to have done them."""
        for rows, tokens, start, placed, end in self._marked:
            self.phases.placing_s += between_s(start, placed)
            self.phases.forward_s += between_s(placed, end)
            self._forwards_run.append((rows, tokens, 1, between_s(start, end)))
        self._marked.clear()
        return self._forwards_run


def kept_last(device: torch.device, feeds: Sequence[Sequence[int]], counts: Sequence[int]) -> slice | Tensor:
    """Of packed tokens, the last so many of each request."""
    if len(feeds) == 1:
        return slice(len(feeds[0]) - counts[0], None)
    kept: list[int] = []
    end = 0
    for feed, count in zip(feeds, counts, strict=True):
        end += len(feed)
        kept.extend(range(end - count, end))
    return torch.from_numpy(np.array(kept, dtype=np.int64)).to(device)
