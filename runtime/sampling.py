"""The distribution that tokens are sampled from: logits divided by the temperature, within top-k and then top-p.

Letter: V vocabulary.
"""

from torch import Tensor, float64, inf

from ..traces.meta import Sampling


def probabilities(logits: Tensor) -> Tensor:
    """`[..., V]` distributions of logits `[..., V]` that are truncated already."""
    return logits.double().softmax(dim=-1)


def truncated(logits: Tensor, sampling: Sampling) -> Tensor:
    """`[..., V]` logits / temperature, -inf outside top-k and then top-p; greedy: the logits as they are.

    In float32, or float64 where the logits are; they must be finite. All tokens that tie with the last of the top k are
    kept. The most probable token is always kept, so the softmax is a distribution. A top_p of 1 keeps everything, as
    `generate()` does. Without top_k and top_p nothing is sorted.
    """
    scaled = logits if logits.dtype == float64 else logits.float()
    if sampling.temperature is not None:
        scaled = scaled / sampling.temperature
    if sampling.top_k is not None:
        scaled = _top_k(scaled, sampling.top_k)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        scaled = _top_p(scaled, sampling.top_p)
    return scaled


def _top_k(scores: Tensor, top_k: int) -> Tensor:
    """Scores below the `top_k`-th largest become -inf."""
    if top_k >= scores.shape[-1]:
        return scores
    lowest_kept = scores.topk(top_k, dim=-1).values[..., -1:]
    return scores.masked_fill(scores < lowest_kept, -inf)


def _top_p(scores: Tensor, top_p: float) -> Tensor:
    """The least probable tokens that add up to at most 1 - `top_p` become -inf, of equal scores the earlier first."""
    ordered, order = scores.sort(dim=-1, stable=True)
    leaves = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    leaves[..., -1] = False
    return scores.masked_fill(leaves.scatter(-1, order, leaves), -inf)
