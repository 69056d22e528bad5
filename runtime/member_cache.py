"""One member's KV cache of one request: it grows by forwards and rolls back by cropping.

Letters: Q new tokens, V vocabulary.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

FULL_ATTENTION = "full_attention"


class MemberCache:
    """A model and what it has read of one text. `forward` and `roll_back` mutate it.

    Attributes:
        tokens: what the cache holds, oldest first; entry i is at position i.

    Raises:
        ValueError: a model whose layers forget (sliding windows, states): they cannot be rolled back.
    """

    __slots__ = ("_cache", "_model", "tokens")

    def __init__(self, model: PreTrainedModel) -> None:
        kinds = set(getattr(model.config, "layer_types", None) or [FULL_ATTENTION])
        if kinds != {FULL_ATTENTION}:
            raise ValueError(f"a cache that rolls back needs {FULL_ATTENTION} layers, got {', '.join(sorted(kinds))}")
        self._model = model
        self._cache = DynamicCache()
        self.tokens: list[int] = []

    @property
    def num_slots(self) -> int:
        """Tokens whose keys and values are really there; always the length of `tokens`."""
        return int(self._cache.get_seq_length())

    def roll_back(self, num_tokens: int) -> None:
        """Forget all but the first `num_tokens` tokens; raises ValueError if the cache holds fewer."""
        surplus = len(self.tokens) - num_tokens
        if surplus < 0:
            raise ValueError(f"num_tokens must be <= {len(self.tokens)}, what the cache holds, got {num_tokens}")
        if surplus:
            # DynamicCache.crop takes the number of tokens to drop, negative.
            self._cache.crop(-surplus)
            del self.tokens[num_tokens:]

    @torch.inference_mode()
    def forward(self, tokens: list[int], *, num_logits: int) -> Tensor:
        """Feed Q tokens; returns the logits `[num_logits, V]` behind the last ones of them."""
        start = len(self.tokens)
        device = self._model.device
        # Without them a model would count positions itself, from whatever it thinks its cache holds.
        positions = torch.arange(start, start + len(tokens), device=device)
        logits: Tensor = self._model(
            input_ids=torch.tensor([tokens], device=device),
            position_ids=positions[None],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=num_logits,
        ).logits[0]
        self.tokens += tokens
        return logits
