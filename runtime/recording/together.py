"""Forwards of contexts of several requests: recorders of requests yield asks, and all asks run together.

The recorder of a request, or of a part of it, is a generator of `Ask`s, which is sent the members' results.
`run_together` takes a step of each in turn, so that a forward holds the contexts of all of them and reads the weights
once. `TreeForward` is a member's part in it: a KV cache with a row for each, which holds prompt, trunk and a tree. A
new context is one query: it attends to the prompt, its own ancestors and itself, by a 4-D mask, at explicit positions;
layers with a sliding window attend to the last of these. Slots do not give positions, and are only appended or cut. A
row may begin as a copy of another one's first slots: the trees of one trunk grow in several rows, since masked slots
are still multiplied.

Rounding depends on what runs together. So requests form groups that depend on their order alone (`recorder`).

Letters: Q contexts of one row, S its slots, F ancestors off the trunk, W hidden size, V vocabulary, R rows.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ..caches import Placement, Places
from ..features import FeatureForward
from ..forward import ModelForward, ModuleForward

Mask = NDArray[np.bool_]
Slots = NDArray[np.int32]
Numbers = NDArray[np.integer[Any]] | Sequence[int]


class Ask(NamedTuple):
    """Contexts of one request that some members evaluate, in one forward of each."""

    members: Sequence[int]  # that evaluate, ascending
    tokens: Numbers  # [Q] the last of each context
    positions: Numbers  # [Q] their places in the text, from 0
    mask: Mask  # [Q, S + Q] slots each attends to, its own among them; slots from S on are forgotten first
    num_logits: int = 0  # logits of this many last contexts; 0: of all
    before: Tensor | None = None  # [Q, W] states before each token, of the member that reads states
    # Row whose first S slots this one copies, if it is empty; each generator has a row.
    base: int | None = None


class ContextResults(NamedTuple):
    """A member's results for contexts."""

    logits: Tensor  # [Q, V], or of the last `num_logits` of them
    states: Tensor  # [Q, W] last hidden states, of a member whose states are read; else none, [0, V]


Result = TypeVar("Result")
# Yields asks, is sent the result of each asked member, and returns a result.
Asking = Generator[Ask, list[ContextResults], Result]


def causal_mask(start: int, count: int) -> Mask:
    """`[Q, S]` of `count` consecutive tokens after `start` slots of a text: each attends to all up to itself."""
    return np.arange(start + count) <= np.arange(start, start + count)[:, None]


def tree_mask(last_trunk_slot: Slots, path: Slots, num_slots: int) -> Mask:
    """`[Q, num_slots + Q]` of contexts off a trunk, after `num_slots` in use.

    Each attends to the trunk up to where it left (`[Q]` slots), its path after that (`[Q, F]` slots) and itself.
    """
    count = len(last_trunk_slot)
    mask = np.arange(num_slots + count) <= last_trunk_slot[:, None]
    own = num_slots + np.arange(count)
    np.put_along_axis(mask, np.column_stack([path, own]), values=True, axis=1)
    return mask


def text_logits(model: PreTrainedModel, text: Sequence[int], num_logits: int) -> Tensor:
    """`[num_logits, V]` logits of a model after the last tokens of a text, from one forward over all of it."""
    ask = Ask([0], text, range(len(text)), causal_mask(0, len(text)), num_logits)
    return TreeForward(ModuleForward(model)).append({0: ask})[0].logits


# Queries times slots of one forward, padding included: attention computes a score and a mask for each.
_MOST_SCORES = 2**23
# Most padding in a forward of a model's own modules, as a share: they compute padding like tokens.
_MOST_PADDING = 0.2


class TreeForward:
    """One member and the cache of contexts, in R numbered rows. The methods change the cache only.

    `forward` runs the member; if it reads states, every `Ask` has them. `states` is whether its own are read,
    `slots_of_context` the most slots that a context takes.
    """

    def __init__(
        self, forward: ModelForward | FeatureForward, *, states: bool = False, slots_of_context: int = 1
    ) -> None:
        self._forward, self._states, self._slots_of_context = forward, states, slots_of_context
        self._cache = forward.slot_cache()

    @property
    def bytes_per_context(self) -> int:
        """Of its keys and values."""
        return self._forward.kv_shape.bytes_per_slot * self._slots_of_context

    def num_slots(self, row: int) -> int:
        """Slots in use."""
        return self._cache.length(str(row))

    def reserve(self, num_rows: int, num_contexts: int) -> None:
        """Make room for `num_rows` rows, none of which is in use, and contexts of each; grows by doubling."""
        names = [str(row) for row in range(num_rows)]
        self._cache.reserve(names, [num_contexts * self._slots_of_context] * num_rows)

    def free(self, row: int) -> None:
        """Forget a row."""
        self._cache.free(str(row))

    def append(self, asks: Mapping[int, Ask]) -> dict[int, ContextResults]:
        """Append the contexts of asks, by row; returns the member's results.

        Raises:
            ValueError: a mask over more slots than the row has.
        """
        said: dict[int, ContextResults] = {}
        for some in self._forwards_of(asks):
            said |= self._append({row: asks[row] for row in some})
        return said

    def _forwards_of(self, asks: Mapping[int, Ask]) -> list[list[int]]:
        """Rows that share a forward: as many as its padding and its attention allow."""
        wide: list[list[int]] = []
        tokens = slots = 0
        for row in sorted(asks, key=lambda number: -len(asks[number].tokens)):
            count, width = asks[row].mask.shape
            longest = len(asks[wide[-1][0]].tokens) if wide else 0
            rows, slots = len(wide[-1]) + 1 if wide else 1, max(slots, width)
            padding = 1 - (tokens + count) / max(1, rows * longest)
            padded = self._forward.name != "fused" and padding > _MOST_PADDING
            if wide and not padded and rows * longest * slots <= _MOST_SCORES:
                wide[-1].append(row)
                tokens += count
            else:
                wide.append([row])
                tokens, slots = count, width
        return wide

    def _append(self, asks: Mapping[int, Ask]) -> dict[int, ContextResults]:
        names = {str(row): row for row in asks}
        for name, row in names.items():
            self._begin(name, asks[row])
        given = list(names)
        order = [names[given[place]] for place in self._cache.in_order(given)]
        rows = [asks[request] for request in order]
        placement = self._place(order, rows)
        device = self._forward.kv_shape.device
        ids = torch.as_tensor(np.concatenate([row.tokens for row in rows]), dtype=torch.long, device=device)
        counts, kept = list(placement.counts), [row.num_logits or len(row.tokens) for row in rows]
        keep: Places = slice(None)
        if kept != counts:
            ends = np.cumsum(counts)
            places = [np.arange(end - own, end) for end, own in zip(ends, kept, strict=True)]
            keep = torch.from_numpy(np.concatenate(places)).to(device)
        logits, states = self._run(ids, placement, keep, [row.before for row in rows])
        own_states = torch.split(states, counts) if len(states) else [states] * len(rows)
        parts = zip(order, torch.split(logits, kept), own_states, strict=True)
        return {row: ContextResults(own, states) for row, own, states in parts}

    def _begin(self, name: str, ask: Ask) -> None:
        """Cut a row to the slots before the ask's contexts."""
        num_slots = ask.mask.shape[1] - len(ask.tokens)
        if ask.base is not None and name not in self._cache.rows:
            self._cache.fork(str(ask.base), name, num_slots)
        elif num_slots or self._cache.length(name):
            self._cache.roll_back(name, num_slots)

    def _place(self, order: Sequence[int], rows: Sequence[Ask]) -> Placement:
        """Where new contexts go, request after request, and what each attends to."""
        cache, device = self._cache, self._forward.kv_shape.device
        names, counts = [str(request) for request in order], [len(row.tokens) for row in rows]
        needed = max(row.mask.shape[1] for row in rows)
        if needed > cache.capacity:
            room = max(needed, 2 * cache.capacity)
            cache.reserve(names, [room - cache.length(name) for name in names])
        placement = cache.place(names, counts)
        looks = np.zeros((len(rows), 1, max(counts), placement.num_slots), dtype=np.bool_)
        for at, row in enumerate(rows):
            count, width = row.mask.shape
            looks[at, 0, :count, :width] = row.mask
            looks[at, 0, count:, :width] = row.mask[-1]  # padding attends like the token it repeats
        positions = np.concatenate([row.positions for row in rows])
        return placement._replace(
            positions=torch.as_tensor(positions, dtype=torch.long, device=device),
            mask=torch.from_numpy(looks).to(device),
            tree=True,
        )

    def _run(
        self, ids: Tensor, placement: Placement, keep: Places, before: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor]:
        if isinstance(self._forward, FeatureForward):
            states = torch.cat([row for row in before if row is not None])
            return self._forward.after(ids, states, placement, self._cache, keep)
        if self._states:
            return self._forward.with_states(ids, placement, self._cache, keep)
        logits = self._forward(ids, placement, self._cache, keep)
        return logits, logits[:0]


def run_together(
    forwards: Sequence[TreeForward],
    recorders: Sequence[Asking[Result]],
    *,
    first_row: int = 0,
    most: int | None = None,
    on_round: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Run generators until all have returned; returns their results. Asks of one member run together.

    Args:
        forwards: of all members, by the indices in asks.
        recorders: have a row each, which is kept at the end, except with `most`.
        first_row: number of the first one's row; the others follow.
        most: running at a time, a row being freed when its generator has returned; None: all.
        on_round: called before each round of forwards.
    """
    waiting = dict[int, Ask]()
    results = dict[int, Result]()
    to_start = list(reversed(range(len(recorders))))

    def resume(place: int, said: list[ContextResults] | None) -> None:
        try:
            waiting[place] = next(recorders[place]) if said is None else recorders[place].send(said)
        except StopIteration as end:
            waiting.pop(place, None)
            results[place] = end.value
            for forward in forwards if most is not None else ():
                forward.free(first_row + place)

    while waiting or to_start:
        while to_start and (most is None or len(waiting) < most):
            resume(to_start.pop(), None)
        on_round()
        said: dict[int, list[ContextResults]] = {place: [] for place in waiting}
        for member, forward in enumerate(forwards):
            asks = {first_row + place: ask for place, ask in waiting.items() if member in ask.members}
            for row, answer in forward.append(asks).items() if asks else ():
                said[row - first_row].append(answer)
        for place, answers in said.items():
            resume(place, answers)
    return [results[place] for place in range(len(recorders))]
