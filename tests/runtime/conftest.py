"""A pool of tiny random Llamas that agree on most tokens, so that chains and closures are not trivial."""

import copy
from collections.abc import Sequence

import pytest
import torch
from paceline.decoding.prompt_lookup import LookupRule
from paceline.runtime.pools.members import describe_lookup, describe_model
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.submodels import make_submodel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,!?\n"
EOS = ALPHABET.index("z")
LATER_LAYERS = 0.3


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


def random_llama(seed: int, *, num_layers: int = 3, vocab_size: int = len(ALPHABET)) -> LlamaForCausalLM:
    """A Llama of width 32: weights large enough for a varied text, later layers weak enough to be left out."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.25,
        eos_token_id=EOS,
        bos_token_id=None,
        attn_implementation="sdpa",
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)
    for layer in model.model.layers[1:]:
        layer.self_attn.o_proj.weight.mul_(LATER_LAYERS)
        layer.mlp.down_proj.weight.mul_(LATER_LAYERS)
    return model


def noisy(model: LlamaForCausalLM, noise: float, seed: int) -> LlamaForCausalLM:
    """A copy with its own weights, each off by `noise` times the weight's spread."""
    generator = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    for weight in other.parameters():
        spread = weight.std() if weight.numel() > 1 else torch.ones(())
        weight.add_(torch.randn(weight.shape, generator=generator) * spread * noise)
    return other


def letters(order: Sequence[str]) -> Tokenizer:
    """One token a letter, numbered in this order."""
    tokenizer = Tokenizer(models.WordLevel({letter: index for index, letter in enumerate(order)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


@pytest.fixture(scope="session")
def tiny_pool() -> ModelPool:
    """ngram, draft (1 layer), mid (2 layers), slim (2 of the target's 3 layers, shared) and target; context 96."""
    target = random_llama(11)
    return ModelPool(
        name="tiny",
        members=(
            describe_lookup("ngram", LookupRule(max_match=3)),
            describe_model("draft", "model", noisy(make_submodel(target, (1, 2)), 0.1, seed=1), None),
            describe_model("mid", "model", noisy(make_submodel(target, (1,)), 0.05, seed=2), None),
            describe_model("slim", "submodel", make_submodel(target, (2,)), None),
            describe_model("target", "model", target, None),
        ),
        tokenizer=letters(ALPHABET),
        tokenizer_sha256="0" * 64,
        eos_token_ids=(EOS,),
        context_tokens=96,
    )
