"""What each model says at a context: its next token, and how sure and how different from the others it is.

Distributions are softmax(logits / temperature) in float32, at temperature 1 for greedy decoding, without the tokens
that top-k and top-p leave out (`sampling.truncation`). Scores choose the token: the logits themselves (greedy), or
truncated logits / temperature + noise (coupled sampling, see `sampling.coupled_noise`).

Letters: Q contexts, V vocabulary, M models (smallest first), P = M(M-1)/2 pairs of models, C children.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..traces.meta import Sampling
from .sampling.truncation import truncated

NEAR_TIE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """Every model's view of Q contexts, unrounded.

    Attributes:
        next_token: `[M, Q]` the token each model writes.
        next_log_prob: `[M, Q]` its log-probability, nats, <= 0.
        top_log_prob: `[M, Q]` log of the largest probability.
        gap: `[M, Q]` largest probability less the second largest, 0 to 1.
        entropy: `[M, Q]` nats, >= 0.
        tvd: `[P, Q]` total variation distance of each pair, 0 to 1, pairs in the order of `TrieMeta.pairs`.
        near_tie: `[M, Q]` whether the two best scores differ by less than 1e-4.
        log_probs: `[M, Q, V]` the distributions, on the models' device; -inf for tokens left out.
    """

    next_token: NDArray[np.int32]
    next_log_prob: NDArray[np.float32]
    top_log_prob: NDArray[np.float32]
    gap: NDArray[np.float32]
    entropy: NDArray[np.float32]
    tvd: NDArray[np.float32]
    near_tie: NDArray[np.bool_]
    log_probs: Tensor

    def log_prob_of(self, context: NDArray[np.int32], token: NDArray[np.int32]) -> NDArray[np.float32]:
        """`[M, C]` log-probability every model gives to a token after a context."""
        device = self.log_probs.device
        rows, columns = (torch.as_tensor(index, dtype=torch.long, device=device) for index in (context, token))
        return _numpy(self.log_probs[:, rows, columns])


def _numpy(tensor: Tensor) -> NDArray[Any]:
    return tensor.cpu().numpy()


def scores(logits: Tensor, sampling: Sampling, noise: NDArray[np.float32] | None) -> Tensor:
    """`[..., V]` what the next token is the argmax of; `noise` is `[..., V]` if coupled, None if greedy.

    Raises:
        ValueError: noise without coupled sampling or the reverse; rejection sampling, which draws.
    """
    return _with_noise(truncated(logits, sampling), sampling, noise)


def _with_noise(plain: Tensor, sampling: Sampling, noise: NDArray[np.float32] | None) -> Tensor:
    """`[..., V]` scores from truncated logits; raises ValueError as `scores` does."""
    if sampling.mode == "rejection":
        raise ValueError("scores choose a token if sampling is greedy or coupled, got rejection")
    if (noise is None) != (sampling.mode == "greedy"):
        raise ValueError(f"{sampling.mode} sampling takes {'a' if noise is None else 'no'} noise")
    return plain if noise is None else plain + torch.as_tensor(noise, device=plain.device)


def entropies(probs: Tensor) -> Tensor:
    """`[...]` entropy of distributions `[..., V]`, nats; 0 log 0 is 0."""
    entropy: Tensor = torch.special.entr(probs).sum(dim=-1)
    return entropy


def gaps(probs: Tensor) -> Tensor:
    """`[...]` largest probability less the second largest, of distributions `[..., V]`."""
    best = probs.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


def total_variation(probs: Tensor, other_probs: Tensor) -> Tensor:
    """`[...]` half the L1 distance of two distributions `[..., V]`, 0 to 1."""
    distance: Tensor = (probs - other_probs).abs().sum(dim=-1) / 2
    return distance.clamp(max=1.0)


def view(logits: Sequence[Tensor], *, sampling: Sampling, noise: NDArray[np.float32] | None) -> Views:
    """Views of Q contexts from the logits `[Q, V]` of every model, smallest first.

    Args:
        logits: of each model, all on one device; a few temporaries of M x Q x V float32 are made.
        sampling: greedy or coupled; its temperature shapes the distributions.
        noise: `[Q, V]` of each context's position if coupled, None if greedy.

    Raises:
        ValueError: noise without coupled sampling or the reverse.
    """
    plain = truncated(torch.stack(list(logits)), sampling)
    ranked = _with_noise(plain, sampling, noise)
    log_probs = torch.log_softmax(plain, dim=-1)
    # argmax takes the first of equal scores; topk promises no order.
    chosen = ranked.argmax(dim=-1)
    best = ranked.topk(2, dim=-1).values
    probs = log_probs.exp()
    return Views(
        next_token=_numpy(chosen).astype(np.int32),
        next_log_prob=_numpy(log_probs.gather(-1, chosen[..., None])[..., 0]),
        top_log_prob=_numpy(log_probs.amax(dim=-1)),
        gap=_numpy(gaps(probs)),
        entropy=_numpy(entropies(probs)),
        tvd=_pair_distances(probs),
        near_tie=_numpy(best[..., 0] - best[..., 1] < NEAR_TIE),
        log_probs=log_probs,
    )


def _pair_distances(probs: Tensor) -> NDArray[np.float32]:
    """`[P, Q]` total variation distances of all pairs of `[M, Q, V]` distributions."""
    num_models, num_contexts, _ = probs.shape
    pairs = [(low, high) for low in range(num_models) for high in range(low + 1, num_models)]
    if not pairs:
        return np.zeros((0, num_contexts), dtype=np.float32)
    return np.stack([_numpy(total_variation(probs[low], probs[high])) for low, high in pairs])
