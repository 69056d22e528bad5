"""Models near a pool's target, to try statistics of similarity on: perturbed copies, submodels in no file.

And how often two models write the same token when both sample with the same noise. With one Gumbel variable per token,
added to the log-probabilities of both, token i is the argmax of both with probability
1 / sum_j max(p_j / p_i, q_j / q_i): an exponential race of all tokens at once (Daliri et al. 2024, arXiv:2408.07978,
who show that the sum over i is at least (1 - TVD) / (1 + TVD)). At most it is 1 - TVD.

Letters: T tokens of a text, V vocabulary.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..runtime.pools.loaded_members import describe_model
from ..runtime.pools.pool import ModelPool
from ..runtime.pools.submodel import make_submodel
from ..runtime.slim.calibration import Calibration, next_token_probs
from ..runtime.slim.masks import Mask


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


def with_slims(pool: ModelPool, masks: Mapping[str, Mask]) -> ModelPool:
    """The pool with a submodel of the target for each mask, in order of size.

    Args:
        pool: not changed.
        masks: layers to leave out, by the name of the member.

    Raises:
        ValueError: a name that is taken, a mask that does not fit, or a target without a network.
    """
    target = pool.target.model
    if target is None:
        raise ValueError(f"target must be a model with layers, got {pool.target.name} without any")
    taken = [member.name for member in pool.members if member.name in masks]
    if taken:
        raise ValueError(f"name must not be that of a member, got {taken[0]!r}")
    slims = [describe_model(name, "submodel", make_submodel(target, mask), None) for name, mask in masks.items()]
    others = sorted((*pool.members[:-1], *slims), key=lambda member: member.num_parameters)
    return replace(pool, members=(*others, pool.target))


def shared_noise_agreement(first: Tensor, second: Tensor) -> Tensor:
    """`[T]` probability of the same token, from distributions `[T, V]` each, in float64.

    Ordered by p / q, the j with p_j / p_i > q_j / q_i are those before i, so that two running sums are enough.
    """
    p, q = first.double(), second.double()
    order = (p.log() - q.log()).nan_to_num(nan=0.0).sort(dim=-1, descending=True).indices
    p, q = p.gather(-1, order), q.gather(-1, order)
    before = p.cumsum(dim=-1)
    after = q.flip(-1).cumsum(dim=-1).flip(-1) - q
    races = before / p + after / q
    return torch.where((p > 0) & (q > 0), 1 / races, 0.0).sum(dim=-1)


def measure_agreement(model: PreTrainedModel, calibration: Calibration) -> float:
    """Mean over the calibration's tokens: the acceptance of coupled sampling, 0 to 1."""
    total = 0.0
    for text in calibration.texts:
        probs = next_token_probs(model, text.prompt, text.tokens, calibration.sampling)
        total += float(shared_noise_agreement(probs, text.target_probs).sum())
    return total / calibration.num_tokens
