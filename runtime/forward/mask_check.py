"""Whether a model takes masks as it is given them, tried on a few tokens: configs do not say it.

A model may make masks of its own from what it is given, count positions itself, or look ahead. Two texts that share
their beginning are fed as one token tree, and must give the logits that they give one by one.
"""

from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from ..broken_rule import BrokenRuleError
from .layer_masks import LayerMasks
from .rounding import apart_by_more_than_rounding

# Families whose answers are compared with those of `generate()` in tests.
KNOWN = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox"})
# Slots 0, 1, 3 are one text, slots 0, 2 the other.
POSITIONS = (0, 1, 1, 2)
LOOKS = ((1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 0, 1))
TEXTS = ((0,), (0, 1), (0, 2), (0, 1, 3))


def masks_known(config: PreTrainedConfig) -> bool:
    """Whether a model of this config is of a known family, which is not tried."""
    return config.model_type in KNOWN


@torch.inference_mode()
def check_masks(model: PreTrainedModel) -> None:
    """Raises BrokenRuleError for a model that does not look exactly where a mask says; known families are not tried."""
    config: Any = model.config
    if masks_known(config):
        return
    ids = torch.arange(len(POSITIONS), device=model.device) * 7 % int(config.vocab_size)
    looks = torch.tensor(LOOKS, dtype=torch.bool, device=model.device)[None, None]
    try:
        found = model(
            input_ids=ids[None],
            position_ids=torch.tensor([POSITIONS], device=model.device),
            attention_mask=LayerMasks(config).of(looks, model.dtype),
            use_cache=False,
        ).logits[0]
        expected = torch.cat([model(input_ids=ids[None, list(text)], use_cache=False).logits[0, -1:] for text in TEXTS])
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise BrokenRuleError(f"must be a model that takes a mask for each token ({reason})") from error
    if apart_by_more_than_rounding(found.float(), expected.float(), model.dtype) is not None:
        rule = f"must be a model that looks where its mask says, model_type {config.model_type} does not"
        raise BrokenRuleError(rule, "other logits")
