"""Batched text generation with a KV cache, for distillation.

Letters: B prompts of a batch, T tokens of the longest prompt.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ...runtime.forward.module_forward import cache_argument
from .growing_cache import growing_cache
from .text.tokenizer import END_TOKEN_ID

# Dropping finished rows copies the cache, so it is not done at every step.
STEPS_BETWEEN_DROPS = 8


@torch.no_grad()
def write_texts(
    model: PreTrainedModel,
    prompts: list[list[int]],
    *,
    num_tokens: int,
    temperature: float | Sequence[float],
    seed: int,
    end_token_ids: tuple[int, ...] = (END_TOKEN_ID,),
) -> list[list[int]]:
    """Continue every prompt until an end token or for `num_tokens` tokens.

    Args:
        model: in eval mode.
        prompts: token ids, none empty.
        num_tokens: most tokens to write.
        temperature: of all prompts, or of each; 0 writes greedily.
        seed: seed of the sampling.
        end_token_ids: tokens that end a text; by default that of our own tokenizers.

    Returns:
        The new tokens of each prompt, the end token included where it was reached.

    Raises:
        ValueError: temperatures that are not as many as prompts.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens, mask = _left_padded(prompts)
    temperatures = _of_each(temperature, len(prompts))
    written: list[list[int]] = [[] for _ in prompts]

    def has_ended(row: int) -> bool:
        return bool(written[row]) and written[row][-1] in end_token_ids

    alive = list(range(len(prompts)))
    cache: Any = growing_cache()
    cached = {cache_argument(model): cache, "use_cache": True}
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    tokens, positions = _read(model, tokens, mask, positions, cached)
    for step in range(num_tokens):
        output = model(input_ids=tokens, attention_mask=mask, position_ids=positions, **cached)
        chosen = _choose(output.logits[:, -1].float(), temperatures[torch.tensor(alive)], generator)
        for row, token in zip(alive, chosen.tolist(), strict=True):
            if not has_ended(row):
                written[row].append(token)
        kept = [place for place, row in enumerate(alive) if not has_ended(row)]
        if not kept:
            break
        if step % STEPS_BETWEEN_DROPS == 0 and len(kept) < len(alive):
            index = torch.tensor(kept)
            cache.batch_select_indices(index)
            alive, chosen = [alive[place] for place in kept], chosen[index]
            mask, positions = mask[index], positions[index]
        tokens = chosen[:, None]
        mask = torch.cat([mask, mask.new_ones(len(alive), 1)], dim=-1)
        positions = positions[:, -1:] + 1
    return written


def _of_each(temperature: float | Sequence[float], num_prompts: int) -> torch.Tensor:
    """Temperatures `[B]`."""
    given = list(temperature) if isinstance(temperature, Sequence) else [temperature] * num_prompts
    if len(given) != num_prompts:
        raise ValueError(f"temperature must be one for each of {num_prompts} prompts, got {len(given)}")
    return torch.tensor(given, dtype=torch.float32)


def _read(
    model: PreTrainedModel, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cached: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Put all tokens `[B, T]` but the last into the cache; returns the last ones and their positions, `[B, 1]`.

    Without the head: the states of the last tokens of many prompts are apart in memory, and a product of such states
    copies the head for each of them (torch 2.13: 14 GB of 256 prompts, and a minute).
    """
    if tokens.shape[1] > 1:
        model.base_model(
            input_ids=tokens[:, :-1], attention_mask=mask[:, :-1], position_ids=positions[:, :-1], **cached
        )
    return tokens[:, -1:], positions[:, -1:]


def _choose(logits: torch.Tensor, temperatures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Next token of each row `[B]` from logits `[B, V]` at temperatures `[B]`."""
    chosen, sampled = logits.argmax(-1), temperatures > 0
    if sampled.any():
        probs = (logits[sampled] / temperatures[sampled, None]).softmax(-1)
        chosen[sampled] = torch.multinomial(probs, 1, generator=generator).squeeze(-1)
    return chosen


def _left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask, both `[B, T]`, so that all prompts end in the same column."""
    longest = max(len(prompt) for prompt in prompts)
    tokens = [[END_TOKEN_ID] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(tokens), torch.tensor(mask)
