"""Submodels: some layers of another model, whose parameters they share.

A submodel may have a product of two small matrices beside kept weights, W + B A in the form of LoRA (Hu et al. 2021,
arXiv:2106.09685), added up at loading. If a layer depends on its number other than by a list with an entry for each
layer, renumbering would change it, and the model has no submodels.

Letters: R rank, I and O inputs and outputs of a linear weight.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from ..forward import UNFIT, apart_by_more_than_rounding, masks_known
from ..refusals import BrokenRuleError, in_one_line, in_words

# Tokens for testing a submodel, and the distance between them: a large one shows differences in positions.
NUM_TOKENS, POSITION_STEP = 12, 16
LAYERS_PREFIX = "model.layers."  # before a layer's number
MODES = ("training", "gradient_checkpointing")  # how a module is used, not what it is
# Types of a module's attributes that are compared; modules, tensors and configs are compared by their results.
_PLAIN = (bool, int, float, str, tuple, list, type(None))


def check_skipped(model: PreTrainedModel, submodel: PreTrainedModel, kept: Sequence[int]) -> None:
    """Raises BrokenRuleError where a submodel is not `model` with the other layers skipped.

    First the settings of modules are compared: this also finds windows longer than the tested text, and works without
    values. Then, with values, the logits of a few tokens, unless `masks_known` holds for the family. `kept` are the
    numbers in `model`, ascending, of the layers that `submodel` has under new numbers.
    """
    _check_settings(model, submodel, kept)
    if len(kept) == model.config.num_hidden_layers or masks_known(model.config) or model.device.type == "meta":
        return
    config: Any = model.config
    ids = torch.arange(NUM_TOKENS, device=model.device)[None] * 7 % int(config.vocab_size)
    positions = getattr(config, "max_position_embeddings", None) or NUM_TOKENS * POSITION_STEP  # None: no bound
    step = max(1, min(POSITION_STEP, positions // NUM_TOKENS))
    name = type(model).__name__
    with torch.no_grad():
        try:
            expected = _logits(_skipping(model, kept), ids, step)
            found = _logits(submodel, ids, step)
        except UNFIT as error:
            rule = f"a submodel needs layers that can be skipped, those of {name} cannot ({in_one_line(error)})"
            raise BrokenRuleError(rule) from error
    # Both round alike, whatever the dtype, so that float32's tolerance holds for all.
    if apart_by_more_than_rounding(found, expected, torch.float32) is not None:
        rule = f"a submodel needs layers that do the same under another number, those of {name} do not"
        raise BrokenRuleError(rule, "other logits than with layers skipped")


def _check_settings(model: PreTrainedModel, submodel: PreTrainedModel, kept: Sequence[int]) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, module in submodel.named_modules(remove_duplicate=False):
        number, rest = _layer_of(name)
        own = None if number is None else (kept[number], number)
        old = name if own is None else f"{LAYERS_PREFIX}{own[0]}{rest}"
        if old not in modules:
            continue  # wrappers of weights, or parts; these are compared by their names
        for field, before, after in _differences(modules[old], module):
            if own is None and type(before) is not float:
                continue  # vocabularies, lists of the layers: no scales
            if type(before) is type(after) is int and (before, after) == own:
                continue  # the number itself, which caches use
            place = f"{old} of {type(model).__name__}"
            rule = f"a submodel needs layers that are the same under another number, {place} is not"
            raise BrokenRuleError(rule, f"{field} {after!r} instead of {before!r}")


def _layer_of(name: str) -> tuple[int | None, str]:
    """(the number of a module's layer, None outside the layers; what follows it in the name)."""
    number, dot, rest = name.removeprefix(LAYERS_PREFIX).partition(".")
    return (int(number), dot + rest) if name.startswith(LAYERS_PREFIX) and number.isdecimal() else (None, name)


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
    # Without a mask, transformers treats gaps between positions as ends of texts.
    asked = {"position_ids": positions, "attention_mask": torch.ones_like(ids), "use_cache": False}
    logits: Tensor = model(input_ids=ids, **asked).logits
    return logits.float()


def _skipping(model: PreTrainedModel, kept: Sequence[int]) -> nn.Module:
    """`model` with layers replaced by the identity, made of its own modules without changing them."""
    whole, inner = _shallow(model), _shallow(model.model)
    layers = enumerate(model.model.layers)
    inner.layers = nn.ModuleList([layer if number in kept else _idle(layer) for number, layer in layers])
    whole.model = inner
    return whole


def _shallow(module: nn.Module) -> nn.Module:
    """A copy with the same parameters and submodules, whose submodules can be replaced."""
    clone = copy.copy(module)
    clone._modules = dict(module._modules)
    return clone


def _idle(layer: nn.Module) -> nn.Module:
    """The layer with the attributes that models read, and a forward that does nothing."""
    clone = _shallow(layer)
    clone.forward = _handed_on
    return clone


def _handed_on(*given: Tensor, **named: Tensor) -> Tensor:
    hidden: Tensor = given[0] if given else named["hidden_states"]
    return hidden


Tensors = TypeVar("Tensors", bound=torch.Tensor)


def make_submodel(model: PreTrainedModel, skip_layers: tuple[int, ...]) -> PreTrainedModel:
    """Leave layers out of `model`; the result has its own KV cache layout with layers 0 to n-1.

    The model must be a decoder with its layers under `model.layers`, as Llama, Qwen and Mistral have them. The result
    is of the same class, and its parameters are the tensors of `model` themselves.

    Raises:
        BrokenRuleError: the layers are elsewhere, out of range, repeated, or none is left, the weights are not the
            model's stock ones, or layers change under another number (`check_skipped`).
    """
    # Includes buffers that are saved with the weights, such as corrections of the choice of experts.
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
    """A model without values; hybrids, or layers that share keys and values, may not allow every selection."""
    try:
        with torch.device("meta"):
            return type(model)(_config_of(model, kept))
    except UNFIT as error:
        rule = f"a submodel cannot be made of {type(model).__name__} ({in_one_line(error)})"
        raise BrokenRuleError(rule) from error


def _why_not(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> tuple[str, str]:
    """(rule, value) for weights that do not fit: they are not the model's stock ones, or depend on layer numbers."""
    name = type(model).__name__
    with torch.device("meta"):
        stock = type(model)(copy.deepcopy(model.config)).state_dict()
    split = bool(model.tp_size)  # shapes are then those of a part
    if stock.keys() != weights.keys() or (
        not split and any(stock[key].shape != weight.shape for key, weight in weights.items())
    ):  # quantised, or with adapters
        return f"a submodel needs the stock weights of {name}", "others"
    return f"a submodel needs layers with the same weights under another number, those of {name} have others", ""


def _share_buffers(model: PreTrainedModel, submodel: PreTrainedModel, kept: list[int]) -> None:
    """Frequencies and scales are outside the state dict, so the submodel's still have no values."""
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
        if _numbers_layers(value, num_layers):  # such as mlp_only_layers
            setattr(config, field, [kept.index(layer) for layer in value if layer in kept])
        elif len(value) == num_layers:  # such as layer_types, mlp_layer_types, no_rope_layers
            setattr(config, field, [value[layer] for layer in kept])
    found: PreTrainedConfig = config
    return found


def _numbers_layers(value: Sequence[object], num_layers: int) -> bool:
    """Whether a list has ascending numbers of some layers, not an entry for each layer (which 0 and 1 may be)."""
    numbers = [entry for entry in value if type(entry) is int and 0 <= entry < num_layers]
    ascending = len(numbers) == len(value) and sorted(set(numbers)) == numbers
    return ascending and (len(value) != num_layers or num_layers > 2)


def _set_gradients(submodel: PreTrainedModel, shared: Mapping[str, torch.Tensor]) -> None:
    """Assigning copies the submodel's `requires_grad` to the shared tensors, so it must equal theirs first."""
    for name, parameter in submodel.named_parameters(remove_duplicate=False):
        if name in shared:
            parameter.requires_grad_(shared[name].requires_grad)


def _renamed(weights: Mapping[str, Tensors], kept: list[int]) -> dict[str, Tensors]:
    """Weights of the kept layers under their new numbers, and all weights outside the layers."""
    renamed = {}
    for name, parameter in weights.items():
        layer, rest = _layer_of(name)
        if layer is None:
            renamed[name] = parameter
        elif layer in kept:
            renamed[f"{LAYERS_PREFIX}{kept.index(layer)}{rest}"] = parameter
    return renamed


DOWN, UP, WHOLE = ".A", ".B", ".weight"


def read_low_rank(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; raises BrokenRuleError where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else in_one_line(error)
        raise BrokenRuleError(f"must be a safetensors file that can be read ({reason})") from error


def restore(submodel: PreTrainedModel, skip_layers: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
    """Give a submodel weights of its own where there are tensors for them; all others are still its model's.

    Args:
        submodel: changed; if its weights have no values, the new ones have none either.
        skip_layers: layers that it leaves out.
        tensors: by the name of a module in the whole model, as `model.layers.3.mlp.up_proj`: `.A` `[R, I]` and `.B`
            `[O, R]` of a linear one, or the `.weight` `[H]` of a norm in its place.

    Raises:
        BrokenRuleError: no tensors, of missing layers or modules, or of shapes that do not fit.
    """
    if not tensors:
        raise BrokenRuleError("must hold at least one tensor")
    modules = {name: module for name, module in submodel.named_modules() if name}
    for name in sorted(tensors):
        module, _, _ = name.rpartition(".")
        kept = modules.get(kept_name(module, skip_layers))
        if kept is None:
            raise BrokenRuleError(f"must hold tensors of layers that are kept ({name} is of none)")
        if not tensors[name].is_floating_point():
            raise BrokenRuleError(f"must hold floating-point tensors ({name} is {_dtype(tensors[name])})")
        if name.endswith(WHOLE):
            _replace(name, kept, tensors[name])
        elif name.endswith(DOWN):
            _merge(module, kept, tensors)
        elif not name.endswith(UP) or module + DOWN not in tensors:
            rule = f"must hold A and B of linear modules and weights of norms ({name} is none of a pair)"
            raise BrokenRuleError(rule)


def kept_name(module: str, skip_layers: Sequence[int]) -> str:
    """The name in a submodel of a module of the whole model; empty if it is left out."""
    layer, rest = _layer_of(module)
    if layer is None:
        return module
    return (
        ""
        if layer in skip_layers
        else f"{LAYERS_PREFIX}{layer - sum(skipped < layer for skipped in skip_layers)}{rest}"
    )


def _replace(name: str, module: nn.Module, tensor: Tensor) -> None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.dim() != 1:
        raise BrokenRuleError(f"must hold whole weights of norms only ({name} is of {type(module).__name__})")
    if tensor.shape != weight.shape:
        found = f"{name} is {in_words(tensor.shape)}, not {in_words(weight.shape)}"
        raise BrokenRuleError(f"must hold shapes that fit ({found})")
    _give(module, tensor.to(weight.device, weight.dtype, copy=True))


def _merge(name: str, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """W + B A for a linear module, added up in float32."""
    if type(module) is not nn.Linear or not name.startswith(LAYERS_PREFIX):
        found = f"{name}{DOWN} is of {type(module).__name__}"
        raise BrokenRuleError(f"must hold A and B of linear modules of layers only ({found})")
    if name + UP not in tensors:
        raise BrokenRuleError(f"must hold A and B of linear modules ({name}{UP} is missing)")
    down, up, weight = tensors[name + DOWN], tensors[name + UP], module.weight
    rank = down.shape[0] if down.dim() == 2 else 0
    for tensor, suffix, fits in (
        (down, DOWN, (rank, module.in_features)),
        (up, UP, (module.out_features, rank)),
    ):
        if rank == 0 or tuple(tensor.shape) != fits:
            found = f"{name}{suffix} is {in_words(tensor.shape)}"
            wanted = in_words(fits) if rank else f"R x {module.in_features}"
            raise BrokenRuleError(f"must hold shapes that fit ({found}, not {wanted})")
    added = torch.matmul(up.to(weight.device, torch.float32), down.to(weight.device, torch.float32))
    _give(module, (weight.detach().float() + added).to(weight.dtype))


def _give(module: nn.Module, weight: Tensor) -> None:
    module.register_parameter("weight", nn.Parameter(weight, requires_grad=False))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
