"""Freshly initialised small networks of several architectures of transformers, from one kind of shape."""

from typing import Any, Literal

import torch
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from .recipe import Recipe, Shape


def make_model(shape: Shape, recipe: Recipe, *, seed: int) -> PreTrainedModel:
    """A network with random weights and tied embeddings.

    Args:
        shape: its architecture and size.
        recipe: its vocabulary and context.
        seed: of the weights.
    """
    torch.manual_seed(seed)
    network: PreTrainedModel = AutoModelForCausalLM.from_config(_config(shape, recipe))
    return network


def layers_of(network: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers, first to last."""
    body: Any = network.base_model
    layers: nn.ModuleList = body.h if network.config.model_type == "gpt2" else body.layers
    return layers


def _config(shape: Shape, recipe: Recipe) -> PreTrainedConfig:
    common: dict[str, Any] = {
        "vocab_size": recipe.vocabulary_size,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 0,
        "attn_implementation": _ATTENTION.get(shape.architecture, "sdpa"),
    }
    if shape.architecture == "gpt2":
        return _gpt2(shape, recipe, common)
    common |= {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "max_position_embeddings": recipe.context_tokens,
    }
    if shape.architecture == "gpt-neox":
        return GPTNeoXConfig(**common)
    common["num_key_value_heads"] = shape.num_heads
    if shape.architecture == "llama":
        return LlamaConfig(**common)
    head_dim = shape.hidden_size // shape.num_heads
    if shape.architecture == "qwen3":
        return Qwen3Config(**common, head_dim=head_dim)
    # Half a context, so that the windows of their layers do cut something off.
    window = {"sliding_window": recipe.context_tokens // 2, "query_pre_attn_scalar": head_dim, "pad_token_id": None}
    kind = Gemma2Config if shape.architecture == "gemma2" else Gemma3TextConfig
    return kind(**common, **window, head_dim=head_dim)


def _gpt2(shape: Shape, recipe: Recipe, common: dict[str, Any]) -> GPT2Config:
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2Config(
        **common,
        **dropouts,
        n_embd=shape.hidden_size,
        n_inner=shape.intermediate_size,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        n_positions=recipe.context_tokens,
    )


# Gemma 2 caps its attention scores, which sdpa does not.
_ATTENTION: dict[str, Literal["eager"]] = {"gemma2": "eager"}
