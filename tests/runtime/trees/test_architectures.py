"""Token trees on models unlike the shipped pool's: the text is what the target writes alone."""

from dataclasses import replace

import pytest
import torch
from paceline.policies import make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import describe_model, loaded_pool
from paceline.runtime.threads import Memory
from paceline.traces.meta import Sampling
from transformers import GPT2Config, GPT2LMHeadModel

from ...tiny_models import VOCABULARY, random_prompts, tiny_pool_of_four
from ..tiny_decoders import tiny_decoder, without_cache

GREEDY = Sampling(mode="greedy")
POSITIONS = 40  # as many as texts of 12 words and 28 tokens of answer have
TREES = ("tree,shape=3x2x1", "tree-dynamic,depth=4,tokens=8")


def gpt2(num_layers):
    """Learned positions, a tied head; a draft of fewer layers is the target's beginning."""
    torch.manual_seed(3)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=32, n_layer=num_layers, n_head=4, bos_token_id=None,
        eos_token_id=None, initializer_range=0.25, attn_implementation="sdpa",
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval().requires_grad_(requires_grad=False)


def decoder(family, dtype=torch.float32):
    def of(num_layers):
        sizes = {"vocab_size": VOCABULARY, "num_hidden_layers": num_layers, "max_position_embeddings": POSITIONS}
        return tiny_decoder(family, dtype, seed=5, **sizes)

    return of


MAKERS = {
    "learned positions": gpt2,
    "tied heads": decoder("llama-ungrouped"),
    "biases": decoder("llama-biased"),
    "windows": decoder("mistral-window"),
    "windows in some layers": decoder("qwen2-window"),
    "bfloat16": decoder("llama", torch.bfloat16),
}


def pool_of(make):
    """`draft` of one layer and `target` of three, with as many positions as the longest text."""
    models = {"draft": make(1), "target": make(3)}
    members = tuple(describe_model(name, "model", model, None) for name, model in models.items())
    return replace(tiny_pool_of_four(), members=members, eos_token_ids=(), context_tokens=POSITIONS)


def answers(pool, policy, **memory):
    prompts = random_prompts(3, seed=2)
    decider = make_policy(policy, loaded_pool(pool))
    longest = max(len(pool.encode(prompt.text)) for prompt in prompts)
    outputs, _ = decode(
        pool, decider, prompts, sampling=GREEDY, max_new_tokens=POSITIONS - longest, name=policy, batch=2,
        memory=Memory(**memory), debug=True,
    )  # fmt: skip
    assert not any(output.error for output in outputs)
    return {prompt.text: list(output.tokens) for prompt, output in zip(prompts, outputs, strict=True)}


def agree(pool, found, expected):
    """Equal texts; of bfloat16, whose forwards round by their width, up to a tie of the target's two best."""
    for text, tokens in expected.items():
        if found[text] == tokens:
            continue
        assert pool.target.dtype == "bfloat16"
        same = next(at for at, pair in enumerate(zip(found[text], tokens, strict=True)) if pair[0] != pair[1])
        best = without_cache(pool.target.model, [*pool.encode(text), *tokens[:same]])[-1].float().topk(2).values
        assert best[0] - best[1] <= 0.05 * best[0].abs()


@pytest.mark.parametrize("kind", MAKERS)
def test_text_up_to_the_last_position_is_the_targets_own(kind):
    pool = pool_of(MAKERS[kind])
    plain = answers(pool, "plain")
    assert len({token for tokens in plain.values() for token in tokens}) > 3
    for policy, cache in zip(TREES, ("slots", "mask"), strict=True):
        agree(pool, answers(pool, policy, cache=cache), plain)
