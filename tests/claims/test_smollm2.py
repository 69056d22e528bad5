"""The real model: every chain writes what transformers itself writes, and both worlds take the same steps.

Slow, and left out where the weights are not: `paceline pool fetch smollm2` brings them.
"""

from functools import lru_cache

import pytest
import torch
from paceline.base.files import shipped
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.published import SMOLLM2_135M, fetched
from paceline.runtime.prompts import read_prompts
from paceline.studies.agree import agree
from paceline.traces.meta import Sampling
from transformers import AutoModelForCausalLM

from ..runtime.offline import decoded

NUM_PROMPTS, NUM_TOKENS = 40, 48
CHAINS = (
    "plain",
    "draft:4/target",
    "mid:4/target",
    "feature:3/target",
    "draft:3/slim:5/target",
    "ngram:4/draft:3/target",
)
EVERY_KIND = (
    "draft:4/target", "mid:4/target", "draft:2/mid:4/target", "draft:3/slim:5/target", "ngram:3/mid:5/target",
    "draft:1/mid:2/slim:5/target", "adaptive,most=8", "slim:3/target",
)  # fmt: skip
WITH_FEATURE = ("feature:3/target", "draft:2/feature:3/target", "feature:2/mid:4/target", "ngram:3/feature:3/target")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("smollm2_weights")]


@lru_cache
def pool(name):
    return ModelPool.load(shipped("pools", name), chat=True)


@lru_cache
def prompts():
    return read_prompts(shipped("pools", "smollm2") / "prompts.jsonl")


@lru_cache
def answers():
    """By transformers, of a model that is loaded apart from the pool, whose weights are laid out anew."""
    stock = AutoModelForCausalLM.from_pretrained(fetched(SMOLLM2_135M.hub_id), dtype=torch.float32).eval()
    found = []
    for prompt in prompts()[:NUM_PROMPTS]:
        ids = torch.tensor([pool("smollm2-feature").encode(prompt.text)])
        answer = stock.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False)
        found.append(tuple(answer[0, ids.shape[1] :].tolist()))
    return found


@pytest.mark.parametrize("policy", CHAINS)
def test_forty_prompts_are_answered_as_by_generate(policy):
    outputs, _ = decoded(pool("smollm2-feature"), policy, prompts()[:NUM_PROMPTS], num_tokens=NUM_TOKENS)
    assert [output.tokens for output in outputs] == answers()


@pytest.mark.parametrize(
    ("name", "recording", "policies", "sampling", "tokens", "limit", "least"),
    [
        ("smollm2", "smollm2", EVERY_KIND, Sampling(mode="greedy"), 64, 40, 10_000),
        ("smollm2", "smollm2-coupled", EVERY_KIND, Sampling(mode="coupled", temperature=0.8, seed=0), 48, 40, 10_000),
        ("smollm2-feature", None, WITH_FEATURE, Sampling(mode="greedy"), 32, 8, 500),
        ("smollm2-feature", None, WITH_FEATURE, Sampling(mode="coupled", temperature=0.8, seed=0), 32, 8, 500),
    ],
    ids=["greedy", "coupled", "feature-greedy", "feature-coupled"],
)
def test_both_worlds_take_the_same_steps(name, recording, policies, sampling, tokens, limit, least):
    """On another machine than that of the recording rounding may flip a near tie, and nothing else."""
    given = {"reach": 6} if recording is None else {"recording": shipped("recordings", f"{recording}.trace")}
    found = agree(
        pool(name), prompts(), list(policies), sampling=sampling, max_new_tokens=tokens, limit=limit, chat=True, **given
    )
    assert all(one.difference is None or near for one, near in zip(found.policies, found.near_ties, strict=True))
    assert sum(one.num_steps for one in found.policies) >= least
