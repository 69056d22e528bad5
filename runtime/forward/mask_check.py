"""Whether a model takes masks and caches as it is given them, tried on a few tokens: configs do not say it.

A model may make masks of its own from what it is given, count positions itself, look ahead, or keep more of the past
than keys and values. Two texts that share their beginning are fed as one token tree, then texts of two requests over a
cache from which some tokens are dropped again; both must give the logits that the texts give one by one.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from ..broken_rule import BrokenRuleError
from .layer_masks import LayerMasks
from .module_forward import ModuleForward
from .rounding import apart_by_more_than_rounding

# Families whose answers are compared with those of `generate()` in tests.
KNOWN = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox"})
# Slots 0, 1, 3 are one text, slots 0, 2 the other.
POSITIONS = (0, 1, 1, 2)
LOOKS = ((1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 0, 1))
TEXTS = ((0,), (0, 1), (0, 2), (0, 1, 3))
# Forwards over a cache, by request: tokens that are kept of what it holds, and new ones.
STEPS = ({"a": (0, 7), "b": (0, 3)}, {"a": (5, 2), "b": (3, 1)}, {"b": (2, 4)}, {"a": (7, 5), "b": (6, 1)})
# What models raise where they are given what they do not take, each in its own way.
UNFIT = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError)


def masks_known(config: PreTrainedConfig) -> bool:
    """Whether a model of this config is of a known family, which is not tried."""
    return config.model_type in KNOWN


@torch.inference_mode()
def check_masks(model: PreTrainedModel) -> None:
    """Raises BrokenRuleError for a model that does not look exactly where a mask says; known families are not tried."""
    config: Any = model.config
    if masks_known(config):
        return
    for tried, takes, does in (
        (_tree, "a mask for each token", "looks where its mask says"),
        (_over_a_cache, "a cache that tokens are dropped from", "gives the same logits with a cache as without"),
    ):
        try:
            pairs = tried(model)
        except UNFIT as error:
            reason = " ".join(str(error).split())
            raise BrokenRuleError(f"must be a model that takes {takes} ({reason})") from error
        for found, expected in pairs:
            if apart_by_more_than_rounding(found.float(), expected.float(), model.dtype) is not None:
                rule = f"must be a model that {does}, model_type {config.model_type} does not"
                raise BrokenRuleError(rule, "other logits")


def _tree(model: PreTrainedModel) -> list[tuple[Tensor, Tensor]]:
    """Logits of a token tree, and those that its texts give one by one."""
    ids = _some_tokens(model, len(POSITIONS))
    looks = torch.tensor(LOOKS, dtype=torch.bool, device=model.device)[None, None]
    found = model(
        input_ids=ids[None],
        position_ids=torch.tensor([POSITIONS], device=model.device),
        attention_mask=LayerMasks(model.config).of(looks, model.dtype),
        use_cache=False,
    ).logits[0]
    return [(found, torch.cat([_stock(model, ids[list(text)]) for text in TEXTS]))]


def _over_a_cache(model: PreTrainedModel) -> list[tuple[Tensor, Tensor]]:
    """Logits after the newest tokens of texts whose ends are dropped and written anew, and those of the texts alone."""
    forward = ModuleForward(model)
    cache, device = forward.slot_cache(), forward.kv_shape.device
    ids = _some_tokens(model, 40)
    texts: dict[str, Tensor] = {}
    pairs = []
    for row, step in enumerate(STEPS):
        counts = [count for _, count in step.values()]
        for name, (kept, count) in step.items():
            cache.roll_back(name, kept)
            new = ids[7 * row + len(name) :][:count].roll(row + ord(name))
            texts[name] = torch.cat([texts.get(name, new[:0])[:kept], new])
        fed = torch.cat([texts[name][-count:] for name, count in zip(step, counts, strict=True)])
        newest = torch.tensor(counts, device=device).cumsum(0) - 1
        logits = forward(fed, cache.place(list(step), counts), cache, newest)
        pairs.append((logits, torch.cat([_stock(model, texts[name]) for name in step])))
    return pairs


def _some_tokens(model: PreTrainedModel, count: int) -> Tensor:
    config: Any = model.config
    return torch.arange(count, device=model.device) * 7 % int(config.vocab_size)


def _stock(model: PreTrainedModel, text: Tensor) -> Tensor:
    """`[1, V]` logits after a text, by the model without cache and mask."""
    logits: Tensor = model(input_ids=text[None], use_cache=False).logits[0, -1:]
    return logits
