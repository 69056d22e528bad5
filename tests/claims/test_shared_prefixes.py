"""Prompts that share text, over prefix caches: every way of decoding writes what transformers itself writes.

And both worlds take the same steps, find the same in prefix caches and evict the same.
"""

from functools import lru_cache

import pytest
from paceline.decoding.prefix_cache import PrefixCacheSize
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt, read_prompts
from paceline.runtime.threads import Memory
from paceline.studies.agree import agree
from paceline.traces.meta import Sampling

from ..runtime.offline import decoded
from .test_generate_identity import PICO, stock_answer

NUM_TOKENS = 32
NUM_GROUPS, OF_GROUP = 12, 5
POLICIES = ("plain", "draft:4/target", "draft:3/mid:6/target", "tree", "pearl,window=4")
# None at all, one that holds everything, and one in which texts drive one another out.
SIZES = {"none": None, "ample": PrefixCacheSize(num_blocks=2000), "scant": PrefixCacheSize(num_blocks=30)}
# What policies plan with in place of measured seconds, which are other ones in each world.
COSTS = "costs=draft:1/mid:2/slim:2/target:6"
EVERY_KIND = (
    "plain",
    "draft:4/target",
    "draft:3/mid:6/target",
    "ngram:4/target",
    "tree",
    "tree,draft=mid,through=slim,shape=2x2x1",
    "tree-dynamic",
    "pearl,window=3",
    f"dsi,{COSTS}",
    "pipespec,window=2",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PICO / "target").is_dir(), reason="the shipped pool is not there"),
]


@pytest.fixture(scope="module")
def pico():
    return ModelPool.load(PICO)


@lru_cache
def shared_prompts():
    """Sixty prompts; groups of five begin with the same two texts."""
    texts = [prompt.text for prompt in read_prompts(PICO / "prompts.jsonl")]
    heads = [" ".join(texts[2 * group : 2 * group + 2]) for group in range(NUM_GROUPS)]
    ends = texts[2 * NUM_GROUPS : 2 * NUM_GROUPS + NUM_GROUPS * OF_GROUP]
    return tuple(
        Prompt(request_id=f"shared-{number}", text=f"{heads[number // OF_GROUP]} {end}")
        for number, end in enumerate(ends)
    )


@lru_cache
def answers():
    pool = ModelPool.load(PICO)
    return [stock_answer(pool, prompt.text, NUM_TOKENS) for prompt in shared_prompts()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cache", ["slots", "mask"])
@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("policy", POLICIES)
def test_sixty_prompts_are_answered_as_by_generate(pico, policy, batch, cache, size):
    memory = Memory(cache=cache, prefixes=SIZES[size])
    outputs, log = decoded(pico, policy, shared_prompts(), num_tokens=NUM_TOKENS, batch=batch, memory=memory)
    assert [output.tokens for output in outputs] == answers()
    assert (log.ops["hit_tokens"].sum() > 0) == (size != "none")
    assert (log.ops["evicted_blocks"].sum() > 0) == (size == "scant")


@pytest.mark.parametrize(
    ("sampling", "batch", "cache", "size", "limit", "least"),
    [
        (Sampling(mode="greedy"), 1, "slots", "ample", 60, 10_000),
        (Sampling(mode="coupled", temperature=0.8, seed=7), 6, "mask", "scant", 15, 1_500),
    ],
    ids=["greedy", "coupled"],
)
def test_ten_thousand_steps_agree(pico, sampling, batch, cache, size, limit, least):
    found = agree(
        pico,
        shared_prompts(),
        list(EVERY_KIND),
        sampling=sampling,
        max_new_tokens=NUM_TOKENS,
        limit=limit,
        batch=batch,
        cache=cache,
        prefix_cache=SIZES[size].num_blocks,
    )
    assert found.agree
    assert all(one.num_left == 0 and one.num_hit_tokens > 0 for one in found.policies)
    assert all((one.num_evicted_blocks > 0) == (size == "scant") for one in found.policies)
    assert sum(one.num_steps for one in found.policies) >= least
