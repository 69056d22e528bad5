"""Measurements of single members: loss on held-out documents and time per token."""

import statistics
import time
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import DynamicCache

from ...runtime.pools.loaded_members import LoadedMember
from .text.item import Item
from .text.tokenizer import END_TOKEN

TIMED_CONTEXT_TOKENS = 128
TIMED_STEPS = 40


@torch.no_grad()
def held_out_loss(member: LoadedMember, items: list[Item], tokenizer: Tokenizer) -> float:
    """Mean cross-entropy in nats per token over whole documents, their end tokens included."""
    model: Any = member.model
    total, num_tokens = 0.0, 0
    for item in items:
        ids = torch.tensor([tokenizer.encode(item.text + END_TOKEN).ids])
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        total += float(functional.cross_entropy(logits[0].float(), ids[0, 1:], reduction="sum"))
        num_tokens += ids.shape[1] - 1
    return total / max(1, num_tokens)


@torch.no_grad()
def seconds_per_token(member: LoadedMember) -> float:
    """Median time of one forward of one token after a cached context."""
    model: Any = member.model
    cache = DynamicCache()
    model(input_ids=torch.ones(1, TIMED_CONTEXT_TOKENS, dtype=torch.long), past_key_values=cache)
    token = torch.ones(1, 1, dtype=torch.long)
    times_s = []
    for _ in range(TIMED_STEPS):
        started_at_s = time.perf_counter()
        model(input_ids=token, past_key_values=cache)
        times_s.append(time.perf_counter() - started_at_s)
    return statistics.median(times_s)
