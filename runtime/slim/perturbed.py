"""Models that are similar to another by a known amount, to try statistics of similarity on."""

import copy

import torch
from transformers import PreTrainedModel


@torch.no_grad()
def perturbed(model: PreTrainedModel, noise: float, *, seed: int) -> PreTrainedModel:
    """A copy of `model` in which every matrix is off by `noise` times its own spread.

    Args:
        model: in evaluation mode; not changed.
        noise: standard deviation of what is added to a weight, in those of its matrix, >= 0.
        seed: of the draws, the same on every machine.

    Raises:
        ValueError: noise below 0.
    """
    if not noise >= 0.0:
        raise ValueError(f"noise must be >= 0, got {noise}")
    other: PreTrainedModel = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for weight in other.parameters():
        if weight.dim() >= 2:
            drawn = torch.randn(weight.shape, generator=generator).to(weight.device, weight.dtype)
            weight.add_(drawn, alpha=noise * float(weight.std()))
    return other
