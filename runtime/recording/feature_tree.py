"""A drafter that reads the target's states over a request's contexts, each at every depth that is recorded.

A context at depth d reads, for its last d tokens but the first, the drafter's own states: those of the contexts before
it at the depths before. What lies in front of them was read by the target, and is the same at all depths. So there is a
slot for each context and depth, and a context looks at those of its ancestors, one depth less at each, down to 1.

Letters: Q contexts, D depths, R contexts at depths, S ordinary slots (of other models), W hidden size, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ...traces.tries.trie import Ints
from ..features.feature_forward import FeatureForward
from ..forward.module_forward import ModuleForward
from ..forward.token_rows import TokenRows, over_rows
from ..kv.slot_cache import SlotCache
from .contexts import Contexts
from .tree_forward import REQUEST, Mask, append_slots, causal_mask


class FeatureTree:
    """One drafter, the cache of its contexts, and what is known of states; changed by `trunk`, `behind` and `cut`.

    Args:
        model: the drafter.
        num_prompt: tokens of the prompt.
        depths: D.
        rows: how its tokens are those of its pool; None where they are the same.
    """

    def __init__(self, model: PreTrainedModel, *, num_prompt: int, depths: int, rows: TokenRows | None = None) -> None:
        self._forward = FeatureForward(model, over_rows(ModuleForward(model), rows))
        self._cache = SlotCache(self._forward.kv_shape)
        self._num_prompt, self._depths = num_prompt, depths
        self._slots: NDArray[np.int64] = np.zeros((0, depths), dtype=np.int64)  # [S, D], -1 for none
        self._ends: list[int] = []  # by ordinary slot, slots in use after it was appended
        self._own: list[list[Tensor | None]] = []  # by ordinary slot and depth, [W]
        self._states: list[Tensor] = []  # by ordinary slot, the target's

    def trunk(self, tokens: Sequence[int], states: Tensor) -> list[Tensor]:
        """Read prompt and trunk.

        Args:
            tokens: of both, `[S]`.
            states: `[S, W]` of the target.

        Returns:
            By depth, `[Q, V]` logits after the prompt and each token of the trunk; NaN where the target has read all.
        """
        count, first = len(tokens), self._num_prompt - 1
        self._slots = np.full((count, self._depths), -1, dtype=np.int64)
        self._own = [[None] * self._depths for _ in tokens]
        self._states = list(states.unbind())
        at = np.arange(count)
        logits, own = self._run(tokens, at, self._before(at - 1, np.ones(count, dtype=int)), causal_mask(0, count))
        self._note(at, np.ones(count, dtype=int), own)
        found = [logits[first:]]
        for depth in range(2, self._depths + 1):
            at = np.arange(first + depth, count)
            found.append(torch.full_like(found[0], torch.nan))
            if len(at):
                depths = np.full(len(at), depth)
                ancestors = [np.arange(place) for place in at]
                looks, new = self._looks(ancestors, depths), [tokens[place] for place in at.tolist()]
                logits, own = self._run(new, at, self._before(at - 1, depths), looks)
                self._note(at, depths, own)
                found[-1][depth:] = logits
        self._ends = [self._cache.length(REQUEST)] * count
        return found

    def behind(self, contexts: Contexts, states: Tensor) -> list[Tensor]:
        """Read contexts off the trunk, whose ancestors were read; returns as `trunk`, `[Q, V]` of each depth.

        Args:
            contexts: Q of them.
            states: `[Q, W]` of the target.
        """
        first, count = len(self._slots), len(contexts)
        self._slots = np.concatenate([self._slots, np.full((count, self._depths), -1, dtype=np.int64)])
        self._own += [[None] * self._depths for _ in range(count)]
        self._states += states.unbind()
        known = np.arange(1, self._depths + 1)[None, :] <= np.maximum(contexts.depth, 1)[:, None]
        row, depth = np.nonzero(known)
        depth = depth + 1
        trunk = contexts.last_trunk_slot
        ancestors = [np.concatenate([np.arange(trunk[at] + 1), contexts.path[at]]) for at in range(count)]
        logits, own = self._run(
            contexts.token[row].tolist(),
            self._num_prompt - 1 + contexts.depth[row],
            self._before(contexts.parent_slot[row], depth),
            self._looks([ancestors[at] for at in row], depth),
        )
        self._note(first + row, depth, own)
        self._ends += [self._cache.length(REQUEST)] * count
        whole = logits.new_full((self._depths, count, logits.shape[1]), torch.nan)
        whole[torch.from_numpy(depth - 1), torch.from_numpy(row)] = logits
        return list(whole.unbind())

    def cut(self, num_slots: int) -> None:
        """Forget all ordinary slots from `num_slots` on."""
        if num_slots < len(self._slots):
            self._cache.roll_back(REQUEST, self._ends[num_slots - 1])
            self._slots = self._slots[:num_slots]
            del self._ends[num_slots:], self._own[num_slots:], self._states[num_slots:]

    def _before(self, parents: NDArray[np.integer], depths: NDArray[np.integer]) -> Tensor:
        """`[R, W]` the state before each: the target's at depth 1, else its own of the context before."""
        shape = self._forward.kv_shape
        nothing = torch.zeros(self._forward.width, dtype=shape.dtype, device=shape.device)
        rows: list[Tensor] = []
        for parent, depth in zip(parents.tolist(), depths.tolist(), strict=True):
            own = nothing if parent < 0 else self._states[parent] if depth == 1 else self._own[parent][depth - 2]
            assert own is not None
            rows.append(own)
        return torch.stack(rows)

    def _looks(self, ancestors: Sequence[NDArray[np.integer]], depths: NDArray[np.integer]) -> Mask:
        """`[R, slots]` where each looks: at its ancestors `[n]`, in order, at depths that fall to 1, and at itself."""
        held, count = self._cache.length(REQUEST), len(depths)
        mask = np.zeros((count, held + count), dtype=np.bool_)
        for row, (before, depth) in enumerate(zip(ancestors, depths.tolist(), strict=True)):
            at = np.maximum(1, depth - np.arange(len(before), 0, -1))
            mask[row, self._slots[before, at - 1]] = True
            mask[row, held + row] = True
        return mask

    def _run(
        self, tokens: Sequence[int], positions: NDArray[np.integer], before: Tensor, mask: Mask
    ) -> tuple[Tensor, Tensor]:
        """`[R, V]` logits and `[R, W]` own states of new slots."""
        placement = append_slots(self._cache, positions, mask)
        ids = torch.tensor(tokens, device=self._forward.kv_shape.device)
        return self._forward.after(ids, before, placement, self._cache, slice(None))

    def _note(self, at: NDArray[np.integer], depths: NDArray[np.integer], own: Tensor) -> None:
        """The newest slots belong to these ordinary slots and depths."""
        held = self._cache.length(REQUEST)
        self._slots[at, depths - 1] = np.arange(held - len(at), held)
        for place, depth, state in zip(at.tolist(), depths.tolist(), own.unbind(), strict=True):
            self._own[place][depth - 1] = state


def depths_known(depth: Ints, depths: int) -> NDArray[np.bool_]:
    """`[E, Q]` at which further depths, from 2 on, contexts of so many tokens after the prompt are."""
    known: NDArray[np.bool_] = np.arange(2, depths + 1)[:, None] <= depth
    return known
