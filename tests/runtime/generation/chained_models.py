"""Small models that decode together inside `generate()`, and what to give them."""

import paceline
import torch
from tokenizers import Tokenizer, decoders
from tokenizers import models as kinds
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.generation.streamers import BaseStreamer

from ..conftest import ALPHABET, noisy, random_llama

PAD = len(ALPHABET) - 1
LENGTHS = (1, 9, 4, 17)
POLICIES = (
    None,
    "plain",
    "assistant0:4/target",
    "assistant1:3/target",
    "assistant0:2/assistant1:5/target",
    "adaptive",
    "confident",
)


class Models:
    """A target and assistants; of a seed alone, two assistants that often agree with their target."""

    def __init__(self, seed: int = 11, *, target=None, assistants=None) -> None:
        self.target, self.assistants = target, assistants
        if target is None:
            self.target = random_llama(seed)
            small = random_llama(seed, num_layers=2)
            self.assistants = [noisy(self.target, 0.02, seed=seed + 1), noisy(small, 0.02, seed=2)]

    def both(self, inputs: dict[str, Tensor], *, ours=None, **options) -> tuple[Tensor, Tensor]:
        """What `generate()` makes of a call, and what we make of it."""
        return self.target.generate(**inputs, **options), self.chained(inputs, **options, **(ours or {}))

    def same(self, inputs: dict[str, Tensor], *, ours=None, **options) -> Tensor:
        """What both make of a call, which has to be the same."""
        stock, found = self.both(inputs, ours=ours, **{"pad_token_id": PAD, "max_new_tokens": 14, **options})
        assert torch.equal(stock, found)
        return stock

    def chained(self, inputs: dict[str, Tensor], **options):
        given = {"assistant_models": self.assistants} | options
        return self.target.generate(**inputs, **given, custom_generate=paceline.generate)


def batch(lengths=LENGTHS, *, seed=0) -> dict[str, Tensor]:
    """Random rows, padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.full((len(lengths), width), PAD)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, width - length :] = torch.randint(len(ALPHABET) - 1, (length,), generator=generator)
        mask[row, width - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def letters() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(kinds.BPE({letter: index for index, letter in enumerate(ALPHABET)}, []))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


class Listener(BaseStreamer):
    def __init__(self) -> None:
        self.heard: list = []

    def put(self, value) -> None:
        self.heard.append(value.tolist())

    def end(self) -> None:
        self.heard.append("end")
