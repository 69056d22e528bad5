"""Choose how a model is run, and check a fused forward against the model's own before it is used.

Letters: T tokens, V vocabulary.
"""

from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...arguments import ArgumentError
from ..kv.slot_cache import SlotCache
from .fused_forward import FusedForward
from .fused_support import fused_supports
from .model_forward import ModelForward
from .module_forward import ModuleForward
from .rounding import apart_by_more_than_rounding

ForwardKind = Literal["auto", "fused", "modules"]
KINDS: tuple[ForwardKind, ...] = ("auto", "fused", "modules")

# Requests and their new tokens in each forward of the check: ragged batches, then a token on its own.
CHECKED_FORWARDS = ((("a", "b"), (3, 5)), (("a", "b"), (2, 1)), (("a",), (1,)))
CHECKED_POSITIONS = 6


def choose_forward(
    model: PreTrainedModel, *, kind: ForwardKind, share_weights: bool, context_tokens: int
) -> ModelForward:
    """How to run `model`; the choice stands in the result's `name`.

    Args:
        model: in evaluation mode, on its device.
        kind: `auto` takes the fused forward where `fused_supports` has no reason against it.
        share_weights: see `FusedForward`; True re-points the model's parameters to a new layout of the same values.
        context_tokens: positions that will be used, enough for the check.

    Raises:
        ValueError: an unknown kind, a context too short, a model that cannot be run this way, or a fused forward whose
            logits are not those of the model.
    """
    if context_tokens < CHECKED_POSITIONS:
        raise ValueError(f"context_tokens must be >= {CHECKED_POSITIONS}, got {context_tokens}")
    if kind not in KINDS:
        raise ArgumentError(f"`forward` must be one of {', '.join(KINDS)}, got {kind!r}")
    reason = fused_supports(model)
    if kind == "fused" and reason is not None:
        raise ArgumentError(f"`forward` must not be 'fused' for this model: {reason}")
    modules = ModuleForward(model)
    if kind == "modules" or reason is not None:
        return modules
    fused = FusedForward(model, share_weights=share_weights, context_tokens=context_tokens)
    check_forwards(fused, modules, vocab_size=model.config.vocab_size)
    return fused


def check_forwards(forward: ModelForward, reference: ModelForward, *, vocab_size: int) -> None:
    """Feed both the same pseudo-random tokens; raises ValueError where their logits differ by more than rounding."""
    found, expected = _sample_logits(forward, vocab_size), _sample_logits(reference, vocab_size)
    apart = apart_by_more_than_rounding(found, expected, reference.kv_shape.dtype)
    if apart is not None:
        worst, limit = apart
        raise ValueError(
            f"{forward.name} logits must be within {limit:.3g} of those of {reference.name}, got {worst:.3g}"
        )


def _sample_logits(forward: ModelForward, vocab_size: int) -> Tensor:
    """Logits `[T, V]` of all tokens of a few forwards, each over what the ones before left in the cache."""
    shape = forward.kv_shape
    cache = SlotCache(shape)
    generator = torch.Generator().manual_seed(0)
    logits = []
    for requests, counts in CHECKED_FORWARDS:
        ids = torch.randint(vocab_size, (sum(counts),), generator=generator).to(shape.device)
        logits.append(forward(ids, cache.place(requests, counts), cache, slice(None)))
    return torch.cat(logits)
