"""A pool of random Llama models that agree often but not always, for tests that decode in milliseconds."""

import random
from functools import lru_cache

import torch
from paceline.decoding.prompt_lookup import LookupRule
from paceline.runtime.pools.members import describe_lookup, describe_model
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.submodels import make_submodel
from paceline.runtime.prompts import Prompt
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 48
EOS = 0
CONTEXT_TOKENS = 256
LOOKUP = LookupRule(max_match=3)
# Layers left out of the target's four; their share of the residual stream is small, so that a submodel often agrees.
SKIPPED = {"draft": (1, 2, 3), "mid": (1, 2), "slim": (2,)}


@lru_cache
def tiny_pool_of_four(seed: int = 1, lookup: LookupRule = LOOKUP) -> ModelPool:
    """`ngram`, `draft`, `mid`, `slim` and `target`; do not change it."""
    torch.set_num_threads(1)
    target = _random_llama(seed)
    submodels = {name: make_submodel(target, skipped) for name, skipped in SKIPPED.items()}
    members = [describe_model(name, "submodel", model, None) for name, model in submodels.items()]
    return ModelPool(
        name="tiny",
        members=(
            describe_lookup("ngram", lookup),
            *members,
            describe_model("target", "model", target, None),
        ),
        tokenizer=_tokenizer(),
        tokenizer_sha256="0" * 64,
        eos_token_ids=(EOS,),
        context_tokens=CONTEXT_TOKENS,
    )


def random_prompts(count: int, *, seed: int = 0, longest: int = 12) -> tuple[Prompt, ...]:
    rng = random.Random(seed)
    texts = (" ".join(f"t{rng.randrange(1, VOCABULARY)}" for _ in range(rng.randint(1, longest))) for _ in range(count))
    return tuple(
        Prompt(request_id=f"r{index}", tag=("a", "b")[index % 2], text=text) for index, text in enumerate(texts)
    )


def _random_llama(seed: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=None,
        attn_implementation="sdpa",
    )
    generator = torch.Generator().manual_seed(seed)
    model = LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    for layer in model.model.layers[1:]:
        layer.self_attn.o_proj.weight.mul_(0.3)
        layer.mlp.down_proj.weight.mul_(0.3)
    return model


def _tokenizer() -> Tokenizer:
    words = {f"t{token}": token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer
