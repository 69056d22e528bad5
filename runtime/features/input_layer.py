"""The layer by which a drafter reads tokens together with hidden states (Li et al. 2024, arXiv:2401.15077, 4.1).

Letter: W hidden size.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..broken_rule import BrokenRuleError

INPUT, WEIGHT = "fc", "fc.weight"


def give_input(model: PreTrainedModel, weight: Tensor | None = None) -> None:
    """Let a model have the input layer `fc`: `[W]` of an embedding and a state side by side, without a bias.

    Args:
        model: changed.
        weight: `[W, 2 W]`; None leaves it without values.

    Raises:
        BrokenRuleError: a weight of another shape.
    """
    width = int(model.config.hidden_size)
    layer = nn.Linear(2 * width, width, bias=False, device="meta", dtype=model.dtype)
    if weight is not None:
        if tuple(weight.shape) != (width, 2 * width):
            found = " x ".join(map(str, weight.shape))
            raise BrokenRuleError(f"must hold {WEIGHT} of {width} x {2 * width}, not {found}")
        layer.weight = nn.Parameter(weight.to(model.device, model.dtype), requires_grad=False)
    model.add_module(INPUT, layer.eval())


def inputs_of(model: PreTrainedModel, ids: Tensor, states: Tensor) -> Tensor:
    """`[..., W]` what the first layer reads of tokens `[...]` and of the states `[..., W]` before them."""
    embedded = model.get_input_embeddings()(ids)
    read: Tensor = model.get_submodule(INPUT)(torch.cat([embedded, states], dim=-1))
    return read


def read_input_weight(location: Path | str) -> Tensor:
    """The weight `fc.weight` in a model's folder.

    Raises:
        BrokenRuleError: no folder, or none of its files of weights holds it.
    """
    if not isinstance(location, Path):
        raise BrokenRuleError("must be a folder where features_of is given", location)
    for file in sorted(location.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as held:
                if WEIGHT in held.keys():  # noqa: SIM118 - it is no mapping
                    weight: Tensor = held.get_tensor(WEIGHT)
                    return weight
        except (OSError, SafetensorError) as error:
            raise BrokenRuleError(f"cannot be read ({error})") from error
    raise BrokenRuleError(f"must hold every weight ({WEIGHT} is missing)")
