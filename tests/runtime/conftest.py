"""A pool of tiny random Llamas that agree on most tokens, so that chains and closures are not trivial."""

import copy

import pytest
import torch
from paceline.decoding.request_text import LookupRule
from paceline.runtime.pools.members import LoadedMember, describe_model
from paceline.runtime.pools.parts import make_submodel
from paceline.runtime.pools.pool import ModelPool
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


def member(name: str, kind: str, model: LlamaForCausalLM) -> LoadedMember:
    return describe_model(name, kind, model, None)


def lookup_member(max_match: int) -> LoadedMember:
    return LoadedMember(
        name="ngram", kind="ngram", model=None, lookup=LookupRule(max_match=max_match), num_parameters=0, num_layers=0,
        hidden_size=0, kv_bytes_per_token=0, dtype="none",
    )  # fmt: skip


@pytest.fixture(scope="session")
def tiny_pool() -> ModelPool:
    """ngram, draft (1 layer), mid (2 layers), slim (2 of the target's 3 layers, shared) and target; context 96."""
    target = random_llama(11)
    tokenizer = Tokenizer(models.WordLevel({letter: index for index, letter in enumerate(ALPHABET)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return ModelPool(
        name="tiny",
        members=(
            lookup_member(3),
            member("draft", "model", noisy(make_submodel(target, (1, 2)), 0.1, seed=1)),
            member("mid", "model", noisy(make_submodel(target, (1,)), 0.05, seed=2)),
            member("slim", "submodel", make_submodel(target, (2,))),
            member("target", "model", target),
        ),
        tokenizer=tokenizer,
        tokenizer_sha256="0" * 64,
        eos_token_ids=(EOS,),
        context_tokens=96,
    )
