"""Batched text generation with a KV cache, for distillation.

Letters: B prompts of a batch, T tokens of the longest prompt.
"""

import torch
from transformers import DynamicCache, PreTrainedModel

from ...runtime.forward.module_forward import cache_argument
from .text.tokenizer import END_TOKEN_ID

# Dropping finished rows copies the cache, so it is not done at every step.
STEPS_BETWEEN_DROPS = 8


@torch.no_grad()
def write_texts(
    model: PreTrainedModel,
    prompts: list[list[int]],
    *,
    num_tokens: int,
    temperature: float,
    seed: int,
    end_token_ids: tuple[int, ...] = (END_TOKEN_ID,),
) -> list[list[int]]:
    """Continue every prompt until an end token or for `num_tokens` tokens.

    Args:
        model: in eval mode.
        prompts: token ids, none empty.
        num_tokens: most tokens to write.
        temperature: 0 writes greedily.
        seed: seed of the sampling.
        end_token_ids: tokens that end a text; by default that of our own tokenizers.

    Returns:
        The new tokens of each prompt, the end token included where it was reached.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens, mask = _left_padded(prompts)
    written: list[list[int]] = [[] for _ in prompts]

    def has_ended(row: int) -> bool:
        return bool(written[row]) and written[row][-1] in end_token_ids

    alive = list(range(len(prompts)))
    cache_name, cache = cache_argument(model), DynamicCache()
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    for step in range(num_tokens):
        output = model(
            input_ids=tokens, attention_mask=mask, position_ids=positions, logits_to_keep=1, **{cache_name: cache}
        )
        chosen = _choose(output.logits[:, -1].float(), temperature, generator)
        for row, token in zip(alive, chosen.tolist(), strict=True):
            if not has_ended(row):
                written[row].append(token)
        if step % STEPS_BETWEEN_DROPS == 0:
            kept = [place for place, row in enumerate(alive) if not has_ended(row)]
            if not kept:
                break
            index = torch.tensor(kept)
            cache.batch_select_indices(index)
            alive, chosen = [alive[place] for place in kept], chosen[index]
            mask, positions = mask[index], positions[index]
        tokens = chosen[:, None]
        mask = torch.cat([mask, mask.new_ones(len(alive), 1)], dim=-1)
        positions = positions[:, -1:] + 1
    return written


def _choose(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """Next token of each row `[B]` from logits `[B, V]`."""
    if temperature == 0.0:
        return logits.argmax(-1)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator).squeeze(-1)


def _left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask, both `[B, T]`, so that all prompts end in the same column."""
    longest = max(len(prompt) for prompt in prompts)
    tokens = [[END_TOKEN_ID] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(tokens), torch.tensor(mask)
