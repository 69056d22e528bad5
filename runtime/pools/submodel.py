"""A model made of some layers of another one, sharing its parameters."""

import copy
from collections.abc import Mapping
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from ..broken_rule import BrokenRuleError

LAYERS_PREFIX = "model.layers."
Tensors = TypeVar("Tensors", bound=torch.Tensor)


def make_submodel(model: PreTrainedModel, skip_layers: tuple[int, ...]) -> PreTrainedModel:
    """Leave layers out of `model`; the result has its own KV cache layout with layers 0 to n-1.

    Args:
        model: a decoder with its layers under `model.layers`, as Llama, Qwen and Mistral have them.
        skip_layers: layers to leave out.

    Returns:
        A model of the same class whose parameters are the very tensors of `model`.

    Raises:
        BrokenRuleError: the layers lie elsewhere, are out of range, repeated, or none is left, or the weights are not
            the model's stock ones.
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
    return submodel.eval()


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
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(kept)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        config.layer_types = [layer_types[layer] for layer in kept]
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
