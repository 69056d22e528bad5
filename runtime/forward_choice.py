"""Choose how a model is run, and check a fused forward against the model's own. Letters: T tokens, V vocabulary."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..base.errors import ArgumentError
from .compiled import Backend, CompiledForward
from .forward import ModelForward, ModuleForward, apart_by_more_than_rounding
from .forward_kinds import KINDS, ForwardKind, replaced
from .fused import FusedForward, TokenRows, fused_supports, lay_back, layouts_of, over_rows
from .products import KnownChoices, ProductChooser

# Requests and their new tokens in each forward of the check: ragged batches, then a token on its own.
CHECKED_FORWARDS = ((("a", "b"), (3, 5)), (("a", "b"), (2, 1)), (("a",), (1,)))
CHECKED_POSITIONS = 6

# Requests and new tokens of the forwards that are timed: a drafted token, a verification, and one of a batch.
_RACED_FORWARDS = ((("a",), (1,)), (("a",), (5,)), (("a", "b", "c", "d"), (5, 5, 5, 5)))
_RACES = 5


def choose_forward(
    model: PreTrainedModel,
    *,
    kind: ForwardKind,
    share_weights: bool,
    context_tokens: int,
    products: ProductChooser | None = None,
    rows: TokenRows | None = None,
    backend: Backend | None = None,
) -> ModelForward:
    """How to run `model`; the result's `name` says which way was chosen.

    The `kind` `auto` takes the faster one, as measured here, of the model's own modules and the fused forward, if
    `fused_supports` allows that; `fused:NAME` multiplies by one product of `products` only; `compiled` are the modules,
    compiled by torch with `backend`. `context_tokens` positions will be used, enough for the check. `rows` are how the
    model's tokens map to those of its pool; None where they are the same. All else is as of `FusedForward`.

    Raises:
        ValueError: an unknown kind, a context too short, a model that cannot be run this way, a product that does not
            work here, a model that cannot be compiled, or a forward whose logits are not those of the model.
    """
    if context_tokens < CHECKED_POSITIONS:
        raise ValueError(f"context_tokens must be >= {CHECKED_POSITIONS}, got {context_tokens}")
    if kind not in KINDS:
        raise ArgumentError(f"`forward` must be one of {', '.join(KINDS)}, got {kind!r}{replaced(kind)}")
    reason = fused_supports(model)
    if kind.startswith("fused") and reason is not None:
        raise ArgumentError(f"`forward` must not be {kind!r} for this model: {reason}")
    modules = ModuleForward(model)
    if kind == "modules":
        return over_rows(modules, rows)
    if kind == "compiled":
        compiled = CompiledForward(model, context_tokens=context_tokens, backend=backend)
        check_forwards(compiled, modules, vocab_size=model.config.vocab_size)
        return over_rows(compiled, rows)
    if reason is not None:
        return over_rows(modules, rows)
    chooser = products or ProductChooser(only=only_product(kind))

    def fused() -> FusedForward:
        made = FusedForward(model, share_weights=share_weights, context_tokens=context_tokens, products=chooser)
        check_forwards(made, modules, vocab_size=model.config.vocab_size)
        return made

    if kind.startswith("fused"):
        return over_rows(fused(), rows)
    weights = "laid out anew" if share_weights else "copied" if chooser.copy_all else "as they stand"
    what = f"{_choice_key(model)}, weights {weights}, two races"  # what one race had decided is not read
    return over_rows(_quicker(model, modules, fused, chooser.known, what), rows)


def only_product(kind: ForwardKind) -> str | None:
    """The product that a kind of forward multiplies everything by; None chooses."""
    return kind.partition(":")[2] or None


def _quicker(
    model: PreTrainedModel,
    modules: ModuleForward,
    make_fused: Callable[[], FusedForward],
    known: KnownChoices,
    what: str,
) -> FusedForward | ModuleForward:
    """The fused forward, unless the modules win two races on this machine, as is `known`, or noted, of `what`.

    Both use the same memory: weights are laid out again one by one, and back in the same way.
    """
    earlier = known.get(what, 1)
    if earlier == [modules.name]:
        return modules
    modules_s = None if earlier else _race_s(modules)
    before = layouts_of(model)
    fused = make_fused()
    if modules_s is None:
        return fused
    # What is chosen is remembered: one slow spell of the machine must not decide against the fused forward.
    chosen = fused if any(_race_s(fused) <= modules_s for _ in range(2)) else modules
    known.note(what, [chosen.name])
    if chosen is modules:
        del fused  # frees its copies of weights before any is laid back
        lay_back(model, before)
    return chosen


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
    """Logits `[T, V]` of all tokens of a few forwards, each after the ones before, in one cache."""
    shape = forward.kv_shape
    cache = forward.slot_cache()
    generator = torch.Generator().manual_seed(0)
    logits = []
    for requests, counts in CHECKED_FORWARDS:
        ids = torch.randint(vocab_size, (sum(counts),), generator=generator).to(shape.device)
        logits.append(forward(ids, cache.place(requests, counts), cache, slice(None)))
    return torch.cat(logits)


def _choice_key(model: PreTrainedModel) -> str:
    """The model's kind and widths, whatever its depth."""
    config = model.config
    widths = f"{config.hidden_size}/{config.intermediate_size}/{model.lm_head.out_features}"
    heads = f"{config.num_attention_heads}/{getattr(config, 'num_key_value_heads', None)} heads"
    dtype = str(model.dtype).removeprefix("torch.")
    return f"forward of {type(model).__name__} {widths}, {heads}, {dtype} on {model.device.type}"


@torch.inference_mode()
def _race_s(forward: ModelForward) -> float:
    """Seconds of a drafted token, a verification and a batched verification together, as medians of a few."""
    total_s = 0.0
    for requests, counts in _RACED_FORWARDS:
        ids = torch.zeros(sum(counts), dtype=torch.long, device=forward.kv_shape.device)
        cache = forward.slot_cache()
        taken = []
        for _ in range(_RACES + 1):
            for request in requests:
                cache.roll_back(request, 0)
            start_s = perf_counter()
            forward(ids, cache.place(requests, counts), cache, slice(None))[-1, -1].item()
            taken.append(perf_counter() - start_s)
        total_s += median(taken[1:])
    return total_s
