"""How often the members of a pool would emit the target's next token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...progress import Progress
from ...runtime.pools.loaded_members import LoadedMember
from ...runtime.pools.pool import ModelPool
from ...runtime.prompts import Prompt
from .writing import write_texts

BATCH_ROWS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Teacher-forced agreement on the target's greedy text.

    Attributes:
        num_tokens: tokens of that text, by domain.
        num_equal: tokens for which a member's greedy choice is the target's, by member and domain.
        texts: the target's greedy text of each prompt, in the order of the prompts.
    """

    num_tokens: dict[str, int]
    num_equal: dict[str, dict[str, int]]
    texts: tuple[str, ...]

    def share(self, member: str, tag: str | None = None) -> float:
        """Share of equal choices in 0..1, of one domain or of all tokens."""
        tags = list(self.num_tokens) if tag is None else [tag]
        equal = sum(self.num_equal[member][each] for each in tags)
        return equal / max(1, sum(self.num_tokens[each] for each in tags))


def agreement(pool: ModelPool, prompts: Sequence[Prompt], *, num_tokens: int = 64) -> Agreement:
    """Let the target continue every prompt greedily and compare every member's choices on that text.

    Members without a network are left out.
    """
    members = [member for member in pool.members if member.model is not None]
    tags = list(dict.fromkeys(prompt.tag for prompt in prompts))
    totals = dict.fromkeys(tags, 0)
    equal = {member.name: dict.fromkeys(tags, 0) for member in members}
    encoded = [pool.encode(prompt.text) for prompt in prompts]
    written = _write_greedily(pool, encoded, num_tokens)
    with Progress("agreement", len(prompts), unit="prompts") as progress:
        for row, prompt in enumerate(prompts):
            choices = _choices(members, encoded[row], written[row])
            totals[prompt.tag] += len(written[row])
            for name, chosen in choices.items():
                equal[name][prompt.tag] += int((chosen == choices[pool.target.name]).sum())
            progress.advance_to(row + 1)
    texts = tuple(pool.decode(text) for text in written)
    return Agreement(num_tokens=totals, num_equal=equal, texts=texts)


def _write_greedily(pool: ModelPool, encoded: list[list[int]], num_tokens: int) -> list[list[int]]:
    target: Any = pool.target.model
    written: list[list[int]] = []
    for first in range(0, len(encoded), BATCH_ROWS):
        batch = encoded[first : first + BATCH_ROWS]
        written += write_texts(target, batch, num_tokens=num_tokens, temperature=0.0, seed=0)
    return written


@torch.no_grad()
def _choices(members: list[LoadedMember], prompt: list[int], text: list[int]) -> dict[str, torch.Tensor]:
    """Each member's greedy choice for every token of `text`, given the tokens before it."""
    tokens = torch.tensor([prompt + text[:-1]])
    choices = {}
    for member in members:
        model: Any = member.model
        logits = model(input_ids=tokens.to(model.device), use_cache=False).logits
        choices[member.name] = logits[0, len(prompt) - 1 :].argmax(-1).cpu()
    return choices
