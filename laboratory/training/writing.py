"""Texts that a model writes, many at a time, on a CPU or a GPU.

Letters: B texts of a batch, T tokens of the longest one; in caches H heads, R tokens of room, D width of a head.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from paceline.runtime.forward import cache_argument
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from .texts import END_TOKEN_ID

ROOM = 128  # tokens by which caches grow


class GrowingLayer(DynamicLayer):
    """Keys and values `[B, H, T, D]`, as views of tensors `[B, H, R, D]`."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - of transformers
        super().__init__(**options)
        self._room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write new tokens after those held; returns all, `[B, H, T, D]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        # Others may have replaced the keys and values, as `batch_repeat_interleave` does.
        is_stale = self._room is None or self.keys.data_ptr() != self._room[0].data_ptr()
        if self._room is None or is_stale or end > self._room[0].shape[-2]:
            self._room = self._larger(key_states, end), self._larger(value_states, end)
            for room, held in zip(self._room, (self.keys, self.values), strict=True):
                if start:
                    room[:, :, :start] = held
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, start:end] = new
        self._show(end)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these texts only."""
        if self._room is not None:
            end = self.get_seq_length()
            self._room = self._room[0][indices], self._room[1][indices]
            self._show(end)

    def _show(self, end: int) -> None:
        assert self._room is not None
        self.keys, self.values = (room[:, :, :end] for room in self._room)

    @staticmethod
    def _larger(states: Tensor, num_tokens: int) -> Tensor:
        return states.new_empty((*states.shape[:2], num_tokens + ROOM, states.shape[-1]))


def growing_cache() -> Cache:
    """A cache that has as many layers as the model."""
    return Cache(layer_class_to_replicate=GrowingLayer)


# Dropping finished rows copies the cache, and looking for them waits for the device, so it is not done at every step.
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
    """Continue every prompt until an end token, which is kept, or for `num_tokens` tokens; 0 as temperature is greedy.

    Raises ValueError unless there is one temperature per prompt.
    """
    device = model.device
    generator = torch.Generator(device).manual_seed(seed)
    tokens, mask = (each.to(device) for each in _left_padded(prompts))
    temperatures = _of_each(temperature, len(prompts)).to(device)
    ends = torch.tensor(end_token_ids, device=device)
    written = tokens.new_full((len(prompts), num_tokens), _NOTHING)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    alive = torch.arange(len(prompts), device=device)
    cache: Any = growing_cache()
    cached = {cache_argument(model): cache, "use_cache": True}
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    with _grouped_attention(model):
        tokens, positions = _read(model, tokens, mask, positions, cached)
        for step in range(num_tokens):
            output = model(input_ids=tokens, attention_mask=mask, position_ids=positions, **cached)
            chosen = _choose(output.logits[:, -1].float(), temperatures[alive], generator)
            written[alive, step] = torch.where(ended[alive], _NOTHING, chosen)
            ended[alive] |= torch.isin(chosen, ends)
            if step % STEPS_BETWEEN_DROPS == 0 and ended[alive].any():
                kept = (~ended[alive]).nonzero().squeeze(-1)
                if not len(kept):
                    break
                cache.batch_select_indices(kept)
                alive, chosen, mask, positions = alive[kept], chosen[kept], mask[kept], positions[kept]
            tokens = chosen[:, None]
            mask = torch.cat([mask, mask.new_ones(len(alive), 1)], dim=-1)
            positions = positions[:, -1:] + 1
    return [[token for token in text if token != _NOTHING] for text in written.tolist()]


@contextmanager
def attention_of_any_length() -> Iterator[None]:
    """Attention without cuDNN, which plans again for every length.

    On an H100 with torch 2.11, 112 steps of 5,120 texts took 15 s with it and 5 s without.
    """
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield


_NOTHING = -1  # no token
_GROUPED = "paceline_grouped"


@contextmanager
def _grouped_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let queries that share keys and values read them once: with one new token that is most of the memory traffic."""
    if model.config._attn_implementation != "sdpa":
        yield
        return
    AttentionInterface.register(_GROUPED, _attend)
    AttentionMaskInterface.register(_GROUPED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    model.config._attn_implementation = _GROUPED
    try:
        yield
    finally:
        model.config._attn_implementation = "sdpa"


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,  # noqa: ANN401 - of transformers
) -> tuple[Tensor, None]:
    """As `sdpa` of transformers; for one new token, the heads of a group are treated as tokens."""
    texts, heads, new, width = query.shape
    if new > 1:
        attended, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return attended, None
    attended = functional.scaled_dot_product_attention(
        query.reshape(texts, key.shape[1], -1, width),
        key,
        value,
        attn_mask=attention_mask,
        scale=options.get("scaling"),
    )
    return attended.reshape(texts, 1, heads, width), None


def _of_each(temperature: float | Sequence[float], num_prompts: int) -> Tensor:
    given = list(temperature) if isinstance(temperature, Sequence) else [temperature] * num_prompts
    if len(given) != num_prompts:
        raise ValueError(f"temperature must be one for each of {num_prompts} prompts, got {len(given)}")
    return torch.tensor(given, dtype=torch.float32)


def _read(
    model: PreTrainedModel, tokens: Tensor, mask: Tensor, positions: Tensor, cached: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Put all tokens `[B, T]` except the last into the cache; returns the last ones and their positions, `[B, 1]`.

    Without the head: the states of the last tokens of many prompts are not contiguous, and a product of such states
    copies the head for each of them (torch 2.13: 14 GB of 256 prompts, and a minute).
    """
    if tokens.shape[1] > 1:
        model.base_model(
            input_ids=tokens[:, :-1], attention_mask=mask[:, :-1], position_ids=positions[:, :-1], **cached
        )
    return tokens[:, -1:], positions[:, -1:]


def _choose(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """Next token of each row `[B]` from logits `[B, V]` at temperatures `[B]`."""
    chosen, sampled = logits.argmax(-1), temperatures > 0
    if sampled.any():
        probs = (logits[sampled] / temperatures[sampled, None]).softmax(-1)
        chosen[sampled] = torch.multinomial(probs, 1, generator=generator).squeeze(-1)
    return chosen


def _left_padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both `[B, T]`, so that all prompts end in the same column."""
    longest = max(len(prompt) for prompt in prompts)
    tokens = [[END_TOKEN_ID] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(tokens), torch.tensor(mask)
