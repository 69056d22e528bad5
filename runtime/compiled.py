"""A model's own forward compiled whole by torch, for a few fixed shapes over a slot cache.

`torch.compile` fuses the operations; on CUDA graphs replay what remains. Each forward is padded to one of a few shapes:
all rows of the cache (row n of the forward is row n of the cache, so nothing is gathered), and 1, 4, 8 or 16 tokens of
each. Padding is id 0 at position 0, written to the last slots of its row, which no forward reads. The mask is made of
the positions inside, so rolling back compiles nothing.

Letters: T new tokens of all requests, R rows of the cache, Q tokens of a row, S slots that are read, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..base.errors import ArgumentError
from .caches import SLOT_STEP, KVShape, MemberKV, Placement, Places, SlotCache
from .forward import ModuleForward

# Tokens of a row. Longer feeds read prompts: there arithmetic dominates, and padding would add to it.
ROW_TOKENS = (1, 4, 8, 16)
MOST_TOKENS = 1024
# Shapes of one code object that torch compiles: rows and slots grow by doubling, so the limit is not reached.
_MOST_SHAPES = 1024

# Torch's own backend; on CUDA it records graphs.
OWN_BACKEND: dict[str, Any] = {"mode": "reduce-overhead"}

Backend = str | Callable[..., Any]


class DoublingCache(SlotCache):
    """Slot == position, in memory that grows by doubling rows and slots, so that its shapes are few.

    The last step of slots of every row is for padding. It is never read: a masked slot is multiplied by 0, and broken
    weights may leave NaN there. `context_tokens` is the longest text, >= 1.
    """

    def __init__(self, shape: KVShape, context_tokens: int) -> None:
        self._most_slots = -(-context_tokens // SLOT_STEP) * SLOT_STEP
        super().__init__(shape)

    @property
    def keys_values(self) -> Tensor:
        """`[L, R, S + 64, 2, H, D]` all its memory. Letters as in `MemberKV`."""
        return self._kv

    def _squeeze(self) -> int:
        return super()._squeeze() + SLOT_STEP

    def _reach(self, row: int) -> int:
        # A row's last step holds padding, which must not be moved to slots that are read.
        return min(super()._reach(row), self.capacity - SLOT_STEP)

    def _slots_needed(self, rows: Sequence[int | None], counts: Sequence[int], further: Sequence[int]) -> int:
        return super()._slots_needed(rows, counts, further) + SLOT_STEP

    def _needed(self, request_ids: Sequence[str], counts: Sequence[int], further: Sequence[int]) -> tuple[int, int]:
        rows, slots = super()._needed(request_ids, counts, further)
        if rows > self.num_rows:
            rows = _power_of_two(rows)
        if slots > self.capacity:
            slots = max(slots, min(_power_of_two(slots - SLOT_STEP), self._most_slots) + SLOT_STEP)
        return rows, slots

    def _zeros(self, rows: int, slots: int) -> Tensor:
        # Tensors made in inference mode are of another kind, for which everything would be compiled again.
        with torch.inference_mode(mode=False):
            made = super()._zeros(rows, slots)
        torch._dynamo.mark_static_address(made)
        return made


def _power_of_two(count: int) -> int:
    """The smallest that is at least `count` >= 1."""
    return 1 << (count - 1).bit_length()


class _Whole:
    """All memory of a cache, for a forward over fixed shapes."""

    def __init__(self, keys_values: Tensor) -> None:
        self._kv = keys_values

    def write(self, layer: int, placement: Placement, keys_values: Tensor) -> None:
        assert isinstance(placement.written, Tensor)
        self._kv[layer].flatten(0, 1).index_copy_(0, placement.written, keys_values)

    def read(self, layer: int, placement: Placement) -> tuple[Tensor, Tensor]:
        keys, values = self._kv[layer, :, : placement.num_slots].permute(2, 0, 3, 1, 4).unbind(0)
        return keys, values


def _fixed(forward: ModuleForward, tokens: Tensor, keys_values: Tensor) -> Tensor:
    """Logits `[R Q, V]` of `[3, R, Q]` ids, positions and slots of all rows; this is what is compiled."""
    ids, positions, written = tokens.unbind(0)
    rows, width = ids.shape
    num_slots = keys_values.shape[2] - SLOT_STEP
    slots = torch.arange(num_slots, device=ids.device)
    placement = Placement(
        counts=(width,) * rows,
        rows=slice(0, rows),
        positions=positions.flatten(),
        written=written.flatten(),
        num_slots=num_slots,
        mask=slots <= positions.view(rows, 1, width, 1),
        pad=None,
        unpad=None,
    )
    return forward.run(ids.flatten(), placement, _Whole(keys_values), slice(None))


class CompiledForward:
    """A model's modules, compiled. Prompts, token trees and caches of another kind run by the uncompiled modules.

    Args:
        model: in evaluation mode; it is not changed.
        context_tokens: positions there are, >= 1.
        backend: of `torch.compile`; None takes its own, with CUDA graphs where there is CUDA.

    Raises:
        ValueError: as of `ModuleForward`.
    """

    name = "compiled"

    def __init__(self, model: PreTrainedModel, *, context_tokens: int, backend: Backend | None = None) -> None:
        self._modules = ModuleForward(model)
        self.kv_shape = self._modules.kv_shape
        self._context_tokens = context_tokens
        how = OWN_BACKEND if backend is None else {"backend": backend}
        self._compiled = torch.compile(partial(_fixed, self._modules), fullgraph=True, dynamic=False, **how)
        self._known: set[tuple[int, ...]] = set()

    def slot_cache(self) -> DoublingCache:
        return DoublingCache(self.kv_shape, self._context_tokens)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> Tensor:
        width = next((width for width in ROW_TOKENS if width >= placement.longest), None)
        if (
            width is None
            or width * cache.num_rows > MOST_TOKENS
            or placement.tree
            or not isinstance(cache, DoublingCache)
        ):
            return self._modules(ids, placement, cache, keep)
        tokens, at = _filled(ids, placement, cache, width)
        logits = self._run(tokens, cache.keys_values)
        # A copy: on CUDA the next call writes its results to the same place.
        return logits.index_select(0, at[keep])

    def with_states(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> tuple[Tensor, Tensor]:
        """See `ModelForward`; a compiled forward returns logits only."""
        raise ValueError("a compiled forward gives no hidden states")

    def _run(self, tokens: Tensor, keys_values: Tensor) -> Tensor:
        shape = (*tokens.shape, *keys_values.shape)
        if keys_values.is_cuda:  # a graph's previous result was copied
            torch.compiler.cudagraph_mark_step_begin()
        if shape in self._known:
            return self._compiled(tokens, keys_values)
        # Torch counts the shapes of all members together, as they share code, and its limit is eight.
        limits = {"recompile_limit": _MOST_SHAPES, "accumulated_recompile_limit": _MOST_SHAPES}
        try:
            with torch._dynamo.config.patch(limits):
                logits = self._compiled(tokens, keys_values)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split("\n")[:2])  # the backend, and what it raised
            raise ArgumentError(f"`forward` must not be compiled for this model here: {reason}") from error
        self._known.add(shape)
        return logits


def _filled(ids: Tensor, placement: Placement, cache: DoublingCache, width: int) -> tuple[Tensor, Tensor]:
    """`[3, R, Q]` input of the compiled code from a forward's ids `[T]`, and `[T]` each token's index in R x Q."""
    device, capacity = ids.device, cache.capacity
    all_rows = torch.arange(cache.num_rows, device=device)
    tokens = torch.zeros((3, cache.num_rows, width), dtype=torch.long, device=device)
    tokens[2] = ((all_rows + 1) * capacity - 1)[:, None]
    rows = all_rows[placement.rows]
    at = placement.unpadded(rows[:, None] * width + torch.arange(placement.longest, device=device))
    positions = placement.positions
    if isinstance(positions, slice):
        positions = torch.arange(positions.start, positions.stop, device=device)
    # In a slot cache a slot is a position.
    written = placement.unpadded((rows * capacity)[:, None].expand(-1, placement.longest)) + positions
    tokens.flatten(1).index_copy_(1, at, torch.stack([ids, positions, written]))
    return tokens, at
