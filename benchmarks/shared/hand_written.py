"""A hand-written two-level greedy speculative loop over transformers modules, as written without this package.

It does no needless work: logits only at the positions used, caches cropped rather than rebuilt, one forward of the
target for the prompt and the first draft together.
"""

import torch
from paceline.runtime.forward import cache_argument
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


class CachedModel:
    """A model with its cache of one text."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache_argument = cache_argument(model)
        self._cache = DynamicCache(config=model.config)
        self.num_held = 0

    def feed(self, tokens: list[int], num_logits: int) -> Tensor:
        """Greedy tokens `[num_logits]` after the last of the fed ones."""
        logits = self._model(
            input_ids=torch.tensor([tokens]),
            use_cache=True,
            logits_to_keep=num_logits,
            **{self._cache_argument: self._cache},
        ).logits
        self.num_held += len(tokens)
        return logits[0].argmax(dim=-1)

    def forget_after(self, num_tokens: int) -> None:
        """Keep at most the first tokens of the text."""
        if self.num_held > num_tokens:
            self._cache.crop(num_tokens - self.num_held)
            self.num_held = num_tokens


@torch.inference_mode()
def speculate(
    draft_model: PreTrainedModel,
    target_model: PreTrainedModel,
    prompt: list[int],
    *,
    window: int,
    max_new_tokens: int,
    eos: frozenset[int],
) -> list[int]:
    """The target's greedy answer, up to `window` tokens drafted a round."""
    draft, target = CachedModel(draft_model), CachedModel(target_model)
    text = list(prompt)
    end = len(prompt) + max_new_tokens
    while len(text) < end and (len(text) == len(prompt) or text[-1] not in eos):
        drafted: list[int] = []
        for _ in range(min(window, end - len(text) - 1)):
            drafted += draft.feed((text + drafted)[draft.num_held :], 1).tolist()
            if drafted[-1] in eos:
                break
        written = target.feed((text + drafted)[target.num_held :], len(drafted) + 1).tolist()
        kept = 0
        while kept < len(drafted) and drafted[kept] == written[kept]:
            kept += 1
        # After a drafted end of sequence the target's own token is not part of the answer.
        ended = kept > 0 and drafted[kept - 1] in eos
        text += drafted[:kept] if ended else written[: kept + 1]
        draft.forget_after(len(text) - 1)
        target.forget_after(len(text) - 1)
    return text[len(prompt) :]
