"""Submodels that learn to do without the layers that they leave out, by a product of small rank beside each weight.

The target's weights stay as they are; W + B A is learned as LoRA does it (Hu et al. 2021, arXiv:2106.09685). B is 0
at first, so that a submodel begins as what it was. The norms in its layers are learned, too; the final one
stays.

Letters: R rank, I and O inputs and outputs of a weight, B texts of a batch, T tokens, W width, K tokens of the head.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ....runtime.pools.submodel import LAYERS_PREFIX, make_submodel
from ...training.architectures import layers_of
from ...training.loop import TrainingRun, run_training
from ..recipe import Recipe
from ..shards import Text
from .students import distance, joined

BETAS = (0.9, 0.98)


class Restored(nn.Module):
    """A linear module whose weight stays, and what is learned beside it.

    Attributes:
        A: `[R, I]`, drawn.
        B: `[O, R]`, zeros at first.
    """

    def __init__(self, linear: nn.Linear, rank: int, *, dtype: torch.dtype, rng: torch.Generator) -> None:
        """Stand for `linear`, whose weight is kept in `dtype`; `rng` draws A."""
        super().__init__()
        self._fixed = (linear.weight.detach().to(dtype), linear.bias)  # a tuple, so that they are no parameters of this
        self.A = nn.Parameter(torch.randn(rank, linear.in_features, generator=rng) / sqrt(linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        """`[..., O]` of `[..., I]`."""
        weight, bias = self._fixed
        return functional.linear(inputs, weight, bias) + functional.linear(functional.linear(inputs, self.A), self.B)


def begin_restored(
    target: PreTrainedModel, skip_layers: Sequence[int], rank: int, *, dtype: torch.dtype, seed: int
) -> PreTrainedModel:
    """A submodel of the target whose layers can be trained; the target is not changed.

    Args:
        target: whose layers it has.
        skip_layers: those that it leaves out.
        rank: R.
        dtype: of weights that stay.
        seed: of what is drawn.
    """
    model = make_submodel(target, tuple(skip_layers))
    rng = torch.Generator().manual_seed(seed)
    for module in list(layers_of(model).modules()):
        for name, child in list(module.named_children()):
            weight = getattr(child, "weight", None)
            if type(child) is nn.Linear:
                setattr(module, name, Restored(child, rank, dtype=dtype, rng=rng))
            elif isinstance(weight, nn.Parameter):
                child.register_parameter("weight", nn.Parameter(weight.detach().clone()))
    return model


def train_restored(
    name: str, skip_layers: Sequence[int], target: PreTrainedModel, texts: Sequence[Text], head: Tensor, recipe: Recipe,
    checkpoint: Path, dtype: torch.dtype,
) -> tuple[dict[str, Tensor], TrainingRun]:  # fmt: skip
    """Train what a submodel has beside the target's weights; returns it in bfloat16, named as pools name it.

    Args:
        name: of the member, for the progress.
        skip_layers: layers that it leaves out.
        target: whose weights it has; not changed.
        texts: to learn from.
        head: `[K, W]`, rows of the target's output head.
        recipe: rank and schedule of `restored`, its seed, and how often the state is written.
        checkpoint: file for the state.
        dtype: that products are computed in.
    """
    model = begin_restored(target, skip_layers, recipe.restored.rank, dtype=dtype, seed=recipe.seed)
    layers = layers_of(model)
    optimizer = torch.optim.AdamW(layers.parameters(), betas=BETAS, weight_decay=0.0, fused=True)
    run = run_training(
        layers, _loss(model, texts, head, dtype), num_sequences=len(texts), schedule=recipe.restored.schedule,
        seed=recipe.seed, sequence_tokens=round(sum(len(text.tokens) for text in texts) / len(texts)),
        checkpoint_every_s=recipe.checkpoint_every_s, checkpoint=checkpoint, stage=name, optimizers=[optimizer],
    )  # fmt: skip
    return learned_by(model, skip_layers), run


def _loss(
    model: PreTrainedModel, texts: Sequence[Text], head: Tensor, dtype: torch.dtype
) -> Callable[[int, Tensor], Tensor]:
    """That of a step: as a student's, of questions and answers."""

    def loss_at(_: int, rows: Tensor) -> Tensor:
        picked = [texts[row] for row in rows.tolist()]
        tokens = nn.utils.rnn.pad_sequence([text.tokens[:-1] for text in picked], batch_first=True)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
            return distance(joined(hidden, picked), torch.cat([text.states.float() for text in picked]), head)

    return loss_at


def learned_by(model: PreTrainedModel, skip_layers: Sequence[int]) -> dict[str, Tensor]:
    """What was learned, in bfloat16, by the names that modules have in the target."""
    kept = [layer for layer in range(len(layers_of(model)) + len(skip_layers)) if layer not in skip_layers]
    return {
        f"{LAYERS_PREFIX}{kept[place]}.{name}": parameter.detach().to(torch.bfloat16)
        for place, layer in enumerate(layers_of(model))
        for name, parameter in layer.named_parameters()
    }
