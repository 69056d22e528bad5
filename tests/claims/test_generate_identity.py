"""The shipped pool decodes exactly what transformers itself writes, whatever policy, batch and cache."""

from functools import lru_cache
from pathlib import Path

import pytest
import torch
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import read_prompts
from paceline.runtime.threads import Memory
from transformers import AutoModelForCausalLM

from ..runtime.offline import decoded

PICO = Path(__file__).parents[2] / "pools" / "pico"
NUM_PROMPTS, NUM_TOKENS = 60, 64
FEW_PROMPTS, FEW_TOKENS = 6, 24
POLICIES = (
    "plain",
    "draft:4/target",
    "draft:3/mid:6/target",
    "draft:3/slim:6/target",
    "ngram",
    "adaptive",
    "confident",
)

pytestmark = pytest.mark.skipif(not (PICO / "target").is_dir(), reason="the shipped pool is not there")


@lru_cache
def pico():
    return ModelPool.load(PICO)


@lru_cache
def stock_target():
    """Loaded apart from the pool, whose weights are laid out anew."""
    return AutoModelForCausalLM.from_pretrained(PICO / "target", dtype=torch.float32).eval()


@lru_cache
def generated(num_prompts, num_tokens):
    return [
        stock_answer(pico(), prompt.text, num_tokens) for prompt in read_prompts(PICO / "prompts.jsonl")[:num_prompts]
    ]


def stock_answer(pool, text, num_tokens):
    ids = torch.tensor([pool.encode(text)])
    answer = stock_target().generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=pool.eos_token_ids[0],
    )
    return tuple(answer[0, ids.shape[1] :].tolist())


def assert_identical(policy, batch, cache, num_prompts, num_tokens):
    prompts = read_prompts(PICO / "prompts.jsonl")[:num_prompts]
    outputs, log = decoded(pico(), policy, prompts, num_tokens=num_tokens, batch=batch, memory=Memory(cache=cache))
    differing = [
        output.request_id
        for output, answer in zip(outputs, generated(num_prompts, num_tokens), strict=True)
        if output.tokens != answer
    ]
    assert differing == []
    assert log.ops["num_rows"].max() == min(batch, num_prompts)


@pytest.mark.parametrize(
    ("policy", "cache"),
    [("draft:3/mid:6/target", "slots"), ("adaptive", "mask")],
)
def test_a_few_prompts_are_answered_as_by_generate(policy, cache):
    assert_identical(policy, 5, cache, FEW_PROMPTS, FEW_TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["slots", "mask"])
@pytest.mark.parametrize("batch", [1, 5, 16])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_batch_and_cache_writes_what_generate_writes(policy, batch, cache):
    assert_identical(policy, batch, cache, NUM_PROMPTS, NUM_TOKENS)
