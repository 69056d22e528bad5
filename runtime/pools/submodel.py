"""A model made of some layers of another one, sharing its parameters."""

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from ..broken_rule import BrokenRuleError
from ..forward.rounding import apart_by_more_than_rounding

LAYERS_PREFIX = "model.layers."
# Tokens that a submodel is tried on, and how far apart they stand: encodings of positions show where that is far.
CHECKED_TOKENS, POSITION_STEP = 12, 16
# Of the largest logit. Both run the same operations, so that rounding differs where its order is chance, if at all.
MOST_APART = 0.02
Tensors = TypeVar("Tensors", bound=torch.Tensor)


def make_submodel(model: PreTrainedModel, skip_layers: tuple[int, ...]) -> PreTrainedModel:
    """Leave layers out of `model`; the result has its own KV cache layout with layers 0 to n-1.

    Args:
        model: a decoder with its layers under `model.layers`, as Llama, Qwen and Mistral have them.
        skip_layers: layers to leave out.

    Returns:
        A model of the same class whose parameters are the very tensors of `model`.

    Raises:
        BrokenRuleError: the layers lie elsewhere, are out of range, repeated, or none is left, the weights are not the
            model's stock ones, or the result does not write what `model` writes without these layers, as where a layer
            depends on its number.
    """
    num_layers = int(model.config.num_hidden_layers)
    # Buffers that belong to the weights among them, as what corrects the choice of experts.
    weights: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    if not any(name.startswith(LAYERS_PREFIX) for name in weights):
        raise BrokenRuleError(f"a submodel needs layers under {LAYERS_PREFIX}, {type(model).__name__} has none")
    if len(set(skip_layers)) < len(skip_layers) or any(not 0 <= layer < num_layers for layer in skip_layers):
        raise BrokenRuleError(f"must be different layers of 0..{num_layers - 1}", str(skip_layers))
    kept = [layer for layer in range(num_layers) if layer not in skip_layers]
    if not kept:
        raise BrokenRuleError(f"must leave at least one of {num_layers} layers")
    with torch.device("meta"):
        submodel = type(model)(_config_of(model, kept))
    if model.tp_size:  # split over processes; so is the submodel, by the same plan on the same mesh
        type(model).maybe_distribute_model(submodel, model.config.distributed_config, model._mesh_manager)
    shared = _renamed(weights, kept)
    _set_gradients(submodel, shared)
    try:
        submodel.load_state_dict(shared, strict=True, assign=True)
    except RuntimeError as error:  # weights of other names or shapes: quantised, or with adapters
        raise BrokenRuleError(f"a submodel needs the stock weights of {type(model).__name__}", "others") from error
    _share_buffers(model, submodel)
    submodel.generation_config = copy.deepcopy(model.generation_config)
    submodel.eval()
    if model.device.type != "meta":
        _check_skipped(model, submodel, skip_layers)
    return submodel


@torch.no_grad()
def _check_skipped(model: PreTrainedModel, submodel: PreTrainedModel, skip_layers: tuple[int, ...]) -> None:
    """The submodel's logits are those of `model` with these layers passed over; raises BrokenRuleError.

    Nothing says which fields of a config are by layer, and a layer may make something of its number.
    """
    step = max(1, min(POSITION_STEP, int(model.config.max_position_embeddings) // CHECKED_TOKENS))
    ids = torch.arange(CHECKED_TOKENS, device=model.device)[None] * 7 % int(model.config.vocab_size)
    asked = {
        "input_ids": ids,
        "position_ids": torch.arange(CHECKED_TOKENS, device=model.device)[None] * step,
        # Without one, transformers takes gaps between positions for ends of texts.
        "attention_mask": torch.ones_like(ids),
        "use_cache": False,
    }
    hooks = [
        model.get_submodule(f"{LAYERS_PREFIX}{layer}").register_forward_hook(_passed_over, with_kwargs=True)
        for layer in skip_layers
    ]
    try:
        expected = model(**asked).logits
    finally:
        for hook in hooks:
            hook.remove()
    found = submodel(**asked).logits
    if apart_by_more_than_rounding(found, expected, model.dtype, most=MOST_APART) is not None:
        raise BrokenRuleError(
            f"needs a model whose layers do not depend on their numbers, and those of {type(model).__name__} do"
        )


def _passed_over(_: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any], said: object) -> object:
    """What a layer is given, in the form of what it says."""
    hidden = given[0] if given else named["hidden_states"]
    return (hidden, *said[1:]) if isinstance(said, tuple) else hidden


def _share_buffers(model: PreTrainedModel, submodel: PreTrainedModel) -> None:
    """Frequencies and scales are outside the state dict, so that the submodel's are still without values.

    They are the same in every layer, where they lie in layers at all.
    """
    values = dict(model.named_buffers())
    for name, buffer in list(submodel.named_buffers()):
        if buffer.is_meta:
            parent, _, own = name.rpartition(".")
            submodel.get_submodule(parent).register_buffer(own, values[name], persistent=False)


def _config_of(model: PreTrainedModel, kept: list[int]) -> object:
    config, num_layers = copy.deepcopy(model.config), int(model.config.num_hidden_layers)
    config.num_hidden_layers = len(kept)
    # Whatever has an entry for each layer; that this is right is checked on the logits.
    for name, value in vars(model.config).items():
        if isinstance(value, list | tuple) and len(value) == num_layers:
            setattr(config, name, [value[layer] for layer in kept])
    return config


def _set_gradients(submodel: PreTrainedModel, shared: Mapping[str, torch.Tensor]) -> None:
    """Assigning hands the submodel's own setting to the shared tensors, so it has to be theirs already."""
    for name, parameter in submodel.named_parameters(remove_duplicate=False):
        if name in shared:
            parameter.requires_grad_(shared[name].requires_grad)


def _renamed(weights: Mapping[str, Tensors], kept: list[int]) -> dict[str, Tensors]:
    """The kept layers under their new numbers, and everything outside the layers."""
    renamed = {}
    for name, parameter in weights.items():
        if not name.startswith(LAYERS_PREFIX):
            renamed[name] = parameter
            continue
        layer, _, rest = name.removeprefix(LAYERS_PREFIX).partition(".")
        if int(layer) in kept:
            renamed[f"{LAYERS_PREFIX}{kept.index(int(layer))}.{rest}"] = parameter
    return renamed
