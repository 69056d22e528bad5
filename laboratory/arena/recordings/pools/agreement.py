"""How far a student agrees with the target on the target's own greedy texts.

Letters: N texts, T tokens of the longest prompt and text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from .....decoding.prompt_lookup import LookupRule, prompt_lookup
from ....training.text.item import Item
from ....training.text.tokenizer import END_TOKEN_ID
from ....training.writing import write_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTexts:
    """Texts that the target wrote greedily.

    Attributes:
        tokens: `[N, T]` prompt and text, padded on the right.
        written: `[N, T - 1]` whether the token after each is one that the target wrote.
    """

    tokens: torch.Tensor
    written: torch.Tensor

    @torch.no_grad()
    def agreement(self, model: PreTrainedModel) -> float:
        """Share of the target's tokens that are the model's likeliest one, in [0, 1]."""
        chosen = model(input_ids=self.tokens[:, :-1], use_cache=False).logits.argmax(-1)
        equal = (chosen == self.tokens[:, 1:])[self.written]
        return float(equal.float().mean())

    def lookup_agreement(self, rule: LookupRule) -> float:
        """Share of the target's tokens that a lookup would copy, in [0, 1]."""
        places: list[tuple[int, int]] = self.written.nonzero().tolist()
        rows: list[list[int]] = self.tokens.tolist()
        copied = (prompt_lookup(rows[row][: place + 1], num_tokens=1, rule=rule) for row, place in places)
        equal = (
            tokens == rows[row][place + 1 : place + 2] for tokens, (row, place) in zip(copied, places, strict=True)
        )
        return sum(equal) / len(places)


def write_target_texts(
    target: PreTrainedModel, items: Mapping[str, Sequence[Item]], tokenizer: Tokenizer, *, num_tokens: int
) -> dict[str, TargetTexts]:
    """Let the target continue the prompts of some documents greedily, by domain.

    Args:
        target: in eval mode.
        items: documents whose prompts it continues, at least one of each domain.
        tokenizer: of the target.
        num_tokens: most tokens of a text, >= 1.
    """
    return {tag: _written(target, some, tokenizer, num_tokens) for tag, some in items.items()}


def joined(texts: Sequence[TargetTexts]) -> TargetTexts:
    """All of them as one, at least one."""
    width = max(each.tokens.shape[1] for each in texts)
    tokens = torch.cat([_padded(each.tokens, width, END_TOKEN_ID) for each in texts])
    return TargetTexts(tokens=tokens, written=torch.cat([_padded(each.written, width - 1, 0) for each in texts]))


def _written(target: PreTrainedModel, items: Sequence[Item], tokenizer: Tokenizer, num_tokens: int) -> TargetTexts:
    prompts = [tokenizer.encode(item.prompt).ids for item in items]
    texts = write_texts(target, prompts, num_tokens=num_tokens, temperature=0.0, seed=0)
    width = max(len(prompt) + len(text) for prompt, text in zip(prompts, texts, strict=True))
    tokens = torch.full((len(prompts), width), END_TOKEN_ID)
    written = torch.zeros(len(prompts), width - 1, dtype=torch.bool)
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        length = len(prompt) + len(text)
        tokens[row, :length] = torch.tensor(prompt + text)
        written[row, len(prompt) - 1 : length - 1] = True
    return TargetTexts(tokens=tokens, written=written)


def _padded(rows: torch.Tensor, width: int, value: int) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]), value=value)
