"""A model made of some layers of another one, sharing its parameters."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from ..broken_rule import BrokenRuleError
from ..forward.mask_check import UNFIT
from .skip_check import LAYERS, check_skipped

LAYERS_PREFIX = f"{LAYERS}."
Tensors = TypeVar("Tensors", bound=torch.Tensor)


def make_submodel(model: PreTrainedModel, skip_layers: tuple[int, ...]) -> PreTrainedModel:
    """Leave layers out of `model`; the result has its own KV cache layout with layers 0 to n-1.

    Args:
        model: a decoder with its layers under `model.layers`, as Llama, Qwen and Mistral have them.
        skip_layers: layers to leave out.

    Returns:
        A model of the same class whose parameters are the very tensors of `model`.

    Raises:
        BrokenRuleError: the layers lie elsewhere, are out of range, repeated, or none is left, the weights are not
            the model's stock ones, or layers are others under another number (`skip_check`).
    """
    # Buffers that belong to the weights among them, as what corrects the choice of experts.
    weights: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    if not any(name.startswith(LAYERS_PREFIX) for name in weights):
        raise BrokenRuleError(f"a submodel needs layers under {LAYERS_PREFIX}, {type(model).__name__} has none")
    num_layers = len(model.model.layers)
    if len(set(skip_layers)) < len(skip_layers) or any(not 0 <= layer < num_layers for layer in skip_layers):
        raise BrokenRuleError(f"must be different layers of 0..{num_layers - 1}", str(skip_layers))
    kept = [layer for layer in range(num_layers) if layer not in skip_layers]
    if not kept:
        raise BrokenRuleError(f"must leave at least one of {num_layers} layers")
    submodel = _built(model, kept)
    if model.tp_size:  # split over processes; so is the submodel, by the same plan on the same mesh
        type(model).maybe_distribute_model(submodel, model.config.distributed_config, model._mesh_manager)
    shared = _renamed(weights, kept)
    _set_gradients(submodel, shared)
    try:
        submodel.load_state_dict(shared, strict=True, assign=True)
    except RuntimeError as error:
        raise BrokenRuleError(*_why_not(model, weights)) from error
    _share_buffers(model, submodel, kept)
    submodel.eval()
    check_skipped(model, submodel, kept)
    submodel.generation_config = copy.deepcopy(model.generation_config)
    return submodel


def _built(model: PreTrainedModel, kept: list[int]) -> PreTrainedModel:
    """Without values; layers of a hybrid, or those that share keys and values, may not stand in any number."""
    try:
        with torch.device("meta"):
            return type(model)(_config_of(model, kept))
    except UNFIT as error:
        reason = " ".join(str(error).split())
        raise BrokenRuleError(f"a submodel cannot be made of {type(model).__name__} ({reason})") from error


def _why_not(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> tuple[str, str]:
    """Rule and what was got where weights do not fit: they are not the model's own, or its layers need them so."""
    name = type(model).__name__
    with torch.device("meta"):
        stock = type(model)(copy.deepcopy(model.config)).state_dict()
    split = bool(model.tp_size)  # shapes are those of a part
    if stock.keys() != weights.keys() or (
        not split and any(stock[key].shape != weight.shape for key, weight in weights.items())
    ):  # quantised, or with adapters
        return f"a submodel needs the stock weights of {name}", "others"
    return f"a submodel needs layers with the same weights under another number, those of {name} have others", ""


def _share_buffers(model: PreTrainedModel, submodel: PreTrainedModel, kept: list[int]) -> None:
    """Frequencies and scales are outside the state dict, so that the submodel's are still without values."""
    values = _renamed(dict(model.named_buffers()), kept)
    for name, buffer in list(submodel.named_buffers()):
        if buffer.is_meta:
            parent, _, own = name.rpartition(".")
            submodel.get_submodule(parent).register_buffer(own, values[name], persistent=False)


def _config_of(model: PreTrainedModel, kept: list[int]) -> PreTrainedConfig:
    config: Any = copy.deepcopy(model.config)
    num_layers, config.num_hidden_layers = config.num_hidden_layers, len(kept)
    for field, value in vars(model.config).items():
        if "layer" not in field or not isinstance(value, (list, tuple)):
            continue
        if _numbers_layers(value, num_layers):  # as mlp_only_layers
            setattr(config, field, [kept.index(layer) for layer in value if layer in kept])
        elif len(value) == num_layers:  # as layer_types, mlp_layer_types, no_rope_layers
            setattr(config, field, [value[layer] for layer in kept])
    found: PreTrainedConfig = config
    return found


def _numbers_layers(value: Sequence[object], num_layers: int) -> bool:
    """Whether a list has the numbers of some layers, ascending, and not an entry for each layer, as 0 and 1 may be."""
    numbers = [entry for entry in value if type(entry) is int and 0 <= entry < num_layers]
    ascending = len(numbers) == len(value) and sorted(set(numbers)) == numbers
    return ascending and (len(value) != num_layers or num_layers > 2)


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
