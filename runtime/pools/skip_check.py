"""Whether a submodel is its model without some layers: configs tell layers apart by number in ways of their own.

What a layer is may hang on its number: rotary positions or none, a window, a scale by depth, experts. Where a config
says so by anything but a list with an entry for each layer, a layer that gets another number becomes another one.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..broken_rule import BrokenRuleError
from ..forward.mask_check import UNFIT, masks_known
from ..forward.rounding import apart_by_more_than_rounding

# Tokens that a submodel is tried on, and how far apart they stand: encodings of positions show where that is far.
NUM_TOKENS, POSITION_STEP = 12, 16
LAYERS = "model.layers"
MODES = ("training", "gradient_checkpointing")  # how a module is used, not what it is
# What of a module's attributes is compared; modules, tensors and configs are compared by what they do.
_PLAIN = (bool, int, float, str, tuple, list, type(None))


def check_skipped(model: PreTrainedModel, submodel: PreTrainedModel, kept: Sequence[int]) -> None:
    """Raises BrokenRuleError where a submodel is not `model` with the other layers skipped.

    First the settings of modules are compared, which also tells of windows longer than any text tried, and of models
    without values. Then, where there are values, the logits of a few tokens, of families that `mask_check` does not
    know.

    Args:
        model: the whole; not changed.
        submodel: has the layers of `model` that are kept, numbered anew.
        kept: their numbers in `model`, ascending.
    """
    _check_settings(model, submodel, kept)
    if len(kept) == model.config.num_hidden_layers or masks_known(model.config) or model.device.type == "meta":
        return
    config: Any = model.config
    ids = torch.arange(NUM_TOKENS, device=model.device)[None] * 7 % int(config.vocab_size)
    step = max(1, min(POSITION_STEP, int(config.max_position_embeddings) // NUM_TOKENS))
    name = type(model).__name__
    with torch.no_grad():
        try:
            expected = _logits(_skipping(model, kept), ids, step)
            found = _logits(submodel, ids, step)
        except UNFIT as error:
            reason = " ".join(str(error).split())
            raise BrokenRuleError(
                f"a submodel needs layers that can be skipped, those of {name} cannot ({reason})"
            ) from error
    # Both round alike, whatever the dtype, so that float32's tolerance holds for all.
    if apart_by_more_than_rounding(found, expected, torch.float32) is not None:
        rule = f"a submodel needs layers that do the same under another number, those of {name} do not"
        raise BrokenRuleError(rule, "other logits than with layers skipped")


def _check_settings(model: PreTrainedModel, submodel: PreTrainedModel, kept: Sequence[int]) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, module in submodel.named_modules(remove_duplicate=False):
        number = _number_of(name)
        own = None if number is None else (kept[number], number)
        old = name if own is None else name.replace(f"{LAYERS}.{own[1]}", f"{LAYERS}.{own[0]}", 1)
        if old not in modules:
            continue  # what wraps or splits weights; these are compared by their names
        for field, before, after in _differences(modules[old], module):
            if own is None and type(before) is not float:
                continue  # vocabularies, lists of the layers: nothing that scales
            if type(before) is type(after) is int and (before, after) == own:
                continue  # the number itself, which caches go by
            place = f"{old} of {type(model).__name__}"
            rule = f"a submodel needs layers that are the same under another number, {place} is not"
            raise BrokenRuleError(rule, f"{field} {after!r} instead of {before!r}")


def _number_of(name: str) -> int | None:
    """Of the layer that a module is in."""
    layer = name.removeprefix(f"{LAYERS}.").partition(".")[0]
    return int(layer) if name.startswith(f"{LAYERS}.") and layer.isdecimal() else None


def _differences(before: nn.Module, after: nn.Module) -> Iterator[tuple[str, object, object]]:
    if type(before) is not type(after):
        yield "class", type(before).__name__, type(after).__name__
    theirs = vars(before)
    for field, value in vars(after).items():
        if field.startswith("_") or field in MODES or field not in theirs:
            continue
        if isinstance(value, _PLAIN) and isinstance(theirs[field], _PLAIN) and value != theirs[field]:
            yield field, theirs[field], value


def _logits(model: nn.Module, ids: Tensor, step: int) -> Tensor:
    positions = torch.arange(NUM_TOKENS, device=ids.device)[None] * step
    # Without a mask, transformers takes gaps between positions for ends of texts.
    asked = {"position_ids": positions, "attention_mask": torch.ones_like(ids), "use_cache": False}
    logits: Tensor = model(input_ids=ids, **asked).logits
    return logits.float()


def _skipping(model: PreTrainedModel, kept: Sequence[int]) -> nn.Module:
    """`model` with layers that hand on what they are given, made of its own modules and without changing them."""
    whole, inner = _shallow(model), _shallow(model.model)
    layers = enumerate(model.model.layers)
    inner.layers = nn.ModuleList([layer if number in kept else _idle(layer) for number, layer in layers])
    whole.model = inner
    return whole


def _shallow(module: nn.Module) -> nn.Module:
    """The same parameters and parts, but parts can be exchanged."""
    clone = copy.copy(module)
    clone._modules = dict(module._modules)
    return clone


def _idle(layer: nn.Module) -> nn.Module:
    """The layer with all that a model asks of it, but a forward that does nothing."""
    clone = _shallow(layer)
    clone.forward = _handed_on
    return clone


def _handed_on(*given: Tensor, **named: Tensor) -> Tensor:
    hidden: Tensor = given[0] if given else named["hidden_states"]
    return hidden
