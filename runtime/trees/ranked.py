"""A member's tokens at a context by rank: what the branches of its trees are, here and in a recording.

Tokens rank by the scores that the next token is the argmax of: logits if greedy, logits over the temperature and noise
if coupled. So rank 0 is what the member writes, and under coupled sampling the branches are those that the target's
coupled sample is most likely among: it is the argmax of the target's logits and the very same noise, while the most
probable tokens without the noise are not the likelier draws of this position. The weight of a branch is the softmax of
the scores, likewise.

Letters: N contexts, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.trees.growth import Branches
from ...traces.tries.stored_resolution import LOG_PROBS


def ranked(scores: Tensor, widths: Sequence[int]) -> list[Branches]:
    """`[N]` the best tokens of each context; equal scores rank by token, and what sampling leaves out does not.

    Args:
        scores: `[N, V]`, the largest of each context finite.
        widths: `[N]` how many at most, >= 1.
    """
    most = min(max(widths), scores.shape[-1])
    least: NDArray[np.float32] = scores.topk(most, dim=-1).values[:, -1:].cpu().numpy()
    weights = torch.log_softmax(scores, dim=-1).cpu().numpy()
    table = scores.cpu().numpy()
    found = []
    for row, bound, weight, width in zip(table, least, weights, widths, strict=True):
        # More than asked for where scores tie with the last one.
        tokens = np.flatnonzero((row >= bound) & (row > -np.inf))
        tokens = tokens[np.lexsort((tokens, -row[tokens]))][:width]
        found.append(Branches(tokens.tolist(), LOG_PROBS.round(weight[tokens]).tolist()))
    return found
