"""A model's distributions of the tokens of a given text, without a cache.

Letters: T tokens of the text, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...traces.meta import Sampling
from ..sampling.truncation import truncated


@torch.inference_mode()
def next_token_probs(
    model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling
) -> Tensor:
    """`[T, V]` float32 on the CPU: the model's distribution of each of T tokens after a prompt.

    Args:
        model: in evaluation mode.
        prompt: at least one token id.
        tokens: `[T]` at least one.
        sampling: whose temperature and truncation they are taken at; greedy ones at temperature 1.
    """
    ids = torch.tensor([[*prompt, *tokens[:-1]]], device=model.device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(tokens)).logits[0]
    return truncated(logits, sampling).float().softmax(dim=-1).cpu()
