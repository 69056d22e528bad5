"""Near ties: choices between two tokens that rounding may flip.

A forward over more rows or more tokens sums in another order. The change in the difference of a model's two best scores
was measured as a share of the largest logit of the context, on 150 contexts of each model of the shipped pool, fed
token by token and in steps of 2, 5 and all tokens: at most 8.9e-7 in float32, 1.3e-3 in float16 and 1.1e-2 in bfloat16.
The bounds are the next power of two above that, and four times as much for float32, which has room for it. Letters: Q
contexts, V vocabulary.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...traces.meta import Sampling
from ..coupled_noise import noise_of
from ..pools.members import LoadedMembers
from .together import text_logits
from .views import scores


class Ties(NamedTuple):
    """Near ties of one request: of all models anywhere, and of the target along the trunk."""

    anywhere: int
    on_trunk: int


# By the dtype of a model's weights, as a share of the largest logit.
BOUNDS = {torch.float64: 2.0**-40, torch.float32: 2.0**-18, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}


def near_ties(logits: Tensor, sampling: Sampling, noise: NDArray[np.float32] | None) -> Tensor:
    """`[Q]` whether rounding may flip the choice of the next token.

    Logits `[Q, V]` are in the dtype of the model's weights; noise is `[Q, V]` if coupled, None if greedy.
    """
    largest = logits.float().abs().amax(-1) / (sampling.temperature or 1.0)
    best = scores(logits, sampling, noise).topk(2, dim=-1).values
    found: Tensor = best[..., 0] - best[..., 1] < BOUNDS[logits.dtype] * largest
    return found


def near_ties_along(
    pool: LoadedMembers, request_id: str, prompt: tuple[int, ...], answer: list[int], *, first: int, sampling: Sampling
) -> list[tuple[str, int]]:
    """Members and output positions, from `first` on, of the near ties along an answer to a prompt.

    Members with a tokenizer of their own, or that read the target's states, are left out.
    """
    text = [*prompt, *answer]
    count = len(answer) - first + 1
    found = []
    for member in pool.members:
        if member.model is None or member.tokenizer is not None or member.from_features:
            continue
        logits = text_logits(member.model, text, count)
        noise = noise_of(sampling, request_id, logits.shape[-1])
        rows = None if noise is None else noise.rows(range(first, len(answer) + 1))
        ties = near_ties(logits, sampling, rows).nonzero().flatten().tolist()
        found += [(member.name, first + place) for place in ties]
    return sorted(found, key=lambda tie: tie[1])
