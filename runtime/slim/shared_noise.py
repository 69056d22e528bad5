"""How often two models write the same token when both sample with the same noise.

With one Gumbel variable per token, added to the log-probabilities of both, token i is the argmax of both with
probability 1 / sum_j max(p_j / p_i, q_j / q_i): an exponential race of all tokens at once (Daliri et al. 2024,
arXiv:2408.07978, who show that the sum over i is at least (1 - TVD) / (1 + TVD)). At most it is 1 - TVD.

Letters: T tokens of a text, V vocabulary.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .calibration import Calibration
from .next_tokens import next_token_probs


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
