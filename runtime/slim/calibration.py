"""The text on which models are held against the target: its own, written after prompts.

Letters: T tokens of one text, N of all texts, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...arguments import ArgumentError
from ...policies.lossless.plain import Plain
from ...traces.meta import Sampling
from ..decode import decode, whole
from ..pools.loaded_members import loaded_pool
from ..pools.pool import ModelPool
from ..prompts import Prompt
from ..sampling.truncation import truncated

# Texts written together.
BATCH = 16
GREEDY = Sampling(mode="greedy")


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationText:
    """One prompt and what the target writes after it.

    Attributes:
        prompt: token ids, at least one.
        tokens: `[T]` ids of the target's text, at least one.
        target_probs: `[T, V]` float32 on the CPU: the target's distribution of each of them.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    target_probs: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Texts of the target; their distributions take 4 N V bytes.

    Attributes:
        texts: one per prompt, at least one.
        sampling: how they were written; distances are taken at its temperature.
    """

    texts: tuple[CalibrationText, ...]
    sampling: Sampling

    @property
    def num_tokens(self) -> int:
        """N."""
        return sum(len(text.tokens) for text in self.texts)


def calibrate(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
) -> Calibration:
    """Let the target continue every prompt, and keep its distributions.

    Args:
        pool: its last member is the target.
        prompts: at least one; their ids must differ.
        max_new_tokens: longest text, >= 1.
        sampling: how the target writes.

    Raises:
        ValueError: no prompts, one that does not fit into the pool's context with its text, or a target that fails.
    """
    if not prompts:
        raise ArgumentError("`prompts` must hold at least one, got none")
    plain = Plain(loaded_pool(pool))
    outputs, _ = whole(
        decode(pool, plain, prompts, sampling=sampling, max_new_tokens=max_new_tokens, name="plain", batch=BATCH)
    )
    texts = []
    for prompt, output in zip(prompts, outputs, strict=True):
        if output.error or pool.target.model is None:
            raise ValueError(output.error)
        ids = tuple(pool.encode(prompt.text))
        probs = next_token_probs(pool.target.model, ids, output.tokens, sampling)
        texts.append(CalibrationText(prompt=ids, tokens=output.tokens, target_probs=probs))
    return Calibration(texts=tuple(texts), sampling=sampling)


@torch.inference_mode()
def next_token_probs(
    model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling
) -> Tensor:
    """`[T, V]` float32 on the CPU: the model's distribution of each of T tokens after a prompt, without a cache.

    Args:
        model: in evaluation mode.
        prompt: at least one token id.
        tokens: `[T]` at least one.
        sampling: whose temperature and truncation they are taken at; greedy ones at temperature 1.
    """
    ids = torch.tensor([[*prompt, *tokens[:-1]]], device=model.device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(tokens)).logits[0]
    return truncated(logits, sampling).float().softmax(dim=-1).cpu()
