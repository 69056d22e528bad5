"""What a submodel was given back for the layers that it leaves out: a product of two small matrices beside weights.

The form is that of LoRA (Hu et al. 2021, arXiv:2106.09685): of a linear weight W of a kept layer, W + B A. They are
added up once, when the pool is loaded, so that every forward runs as for any model.

Letters: R rank, I and O inputs and outputs of a linear weight, H hidden size.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..broken_rule import BrokenRuleError
from .submodel import LAYERS_PREFIX

DOWN, UP, WHOLE = ".A", ".B", ".weight"


def read_low_rank(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; raises BrokenRuleError where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())
        raise BrokenRuleError(f"must be a safetensors file that can be read ({reason})") from error


def restore(submodel: PreTrainedModel, skip_layers: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
    """Give a submodel weights of its own where there are tensors for them; all others stay those of its model.

    Args:
        submodel: changed; its weights may be without values, and are then made without any.
        skip_layers: layers that it leaves out.
        tensors: by the name of a module in the whole model, as `model.layers.3.mlp.up_proj`: `.A` `[R, I]` and `.B`
            `[O, R]` of a linear one, or the `.weight` `[H]` of a norm in its place.

    Raises:
        BrokenRuleError: no tensors, of layers or modules that there are not, or of shapes that do not fit.
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
    """What a module of the whole model is called in a submodel; empty if it is left out."""
    layer, _, rest = module.removeprefix(LAYERS_PREFIX).partition(".")
    if not module.startswith(LAYERS_PREFIX) or not layer.isdecimal():
        return module
    if int(layer) in skip_layers:
        return ""
    return f"{LAYERS_PREFIX}{int(layer) - sum(skipped < int(layer) for skipped in skip_layers)}.{rest}"


def _replace(name: str, module: nn.Module, tensor: Tensor) -> None:
    """Another weight for a norm."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.dim() != 1:
        raise BrokenRuleError(f"must hold whole weights of norms only ({name} is of {type(module).__name__})")
    if tensor.shape != weight.shape:
        raise BrokenRuleError(f"must hold shapes that fit ({name} is {_shape(tensor)}, not {_shape(weight)})")
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
            wanted = " x ".join(map(str, fits)) if rank else f"R x {module.in_features}"
            raise BrokenRuleError(f"must hold shapes that fit ({name}{suffix} is {_shape(tensor)}, not {wanted})")
    added = torch.matmul(up.to(weight.device, torch.float32), down.to(weight.device, torch.float32))
    _give(module, (weight.detach().float() + added).to(weight.dtype))


def _give(module: nn.Module, weight: Tensor) -> None:
    module.register_parameter("weight", nn.Parameter(weight, requires_grad=False))


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
