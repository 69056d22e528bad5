"""Decoding with prefix caches: the same text as without, fewer tokens read, the same evictions in both worlds."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.decoding.prefixes import PrefixCacheSize
from paceline.policies import make_policy
from paceline.runtime.caches import NO_MEMORY, zeros
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.prompts import Prompt
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from paceline.studies.agree import agree

from ..tiny_models import random_prompts, tiny_pool_of_four
from .offline import COUPLED, GREEDY, Offline, trunk

SHARED = "the riders pace the line, and "
TEXTS = ("", "then they draft", "then they go", "we", "then they draft", "the riders")
PROMPTS = tuple(
    Prompt(request_id=str(number), text=SHARED + text if number < 5 else text) for number, text in enumerate(TEXTS)
)


def decoded(pool, policy, size, *, sampling=GREEDY, batch=1, **memory):
    built = make_policy(policy, loaded_pool(pool))
    shared = Memory(prefixes=PrefixCacheSize(**size), **memory)
    outputs, log = decode(
        pool, built, PROMPTS, sampling=sampling, max_new_tokens=20, name="p", batch=batch, memory=shared, debug=True
    )
    assert not [output.error for output in outputs if output.error]
    return {output.request_id: list(output.tokens) for output in outputs}, log


AMPLE, SCANT = {"num_blocks": 40, "block_tokens": 4}, {"num_blocks": 5, "block_tokens": 3}


@pytest.mark.parametrize(
    ("cache", "batch", "size", "sampling"),
    [
        ("slots", 1, AMPLE, COUPLED),
        ("mask", 1, SCANT, GREEDY),
        ("slots", 8, SCANT, COUPLED),
        ("mask", 8, AMPLE, GREEDY),
        *(
            pytest.param(cache, batch, size, sampling, marks=pytest.mark.slow)
            for cache in ("slots", "mask")
            for batch in (1, 8)
            for size in (AMPLE, SCANT)
            for sampling in (GREEDY, COUPLED)
        ),
    ],
)
@pytest.mark.parametrize(
    "policy", ["plain", "draft:3/target", "draft:2/mid:4/target", "tree", "pearl,window=2", "pipespec,window=2"]
)
def test_the_text_is_the_targets_own(tiny_pool, policy, batch, cache, size, sampling):
    tokens, log = decoded(tiny_pool, policy, size, batch=batch, cache=cache, sampling=sampling)
    assert tokens == {
        prompt.request_id: trunk(tiny_pool, prompt, sampling=sampling, num_tokens=20) for prompt in PROMPTS
    }
    assert log.ops["hit_tokens"].sum() > 0


@pytest.mark.parametrize("policy", ["pearl,window=3", "pipespec,window=2"])
def test_threads_find_and_evict_as_turns_do(tiny_pool, policy):
    memory = Memory(prefixes=PrefixCacheSize(num_blocks=9, block_tokens=3))
    ran = [
        Offline(tiny_pool, policy, prompts=PROMPTS, memory=memory, overlap=overlap).run(batch=3)
        for overlap in ("turns", "threads")
    ]
    assert ran[0].texts == ran[1].texts
    for name in ("asked_tokens", "hit_tokens", "entered_blocks", "evicted_blocks"):
        turns, threads = (each.log.ops[name].tolist() for each in ran)
        assert turns == threads
        assert sum(turns) > 0


def test_what_is_found_is_not_fed(tiny_pool):
    """Of the prompts together as many tokens are fed as they differ in, whoever comes first."""
    size = {"num_blocks": 200, "block_tokens": 4}
    for batch in (1, 8):
        _, log = decoded(tiny_pool, "plain", size, batch=batch)
        prefill = np.isin(np.arange(len(log.ops["level"])), log.steps["op"][log.steps["prefill"] == 1])
        fed, asked, hit = (int(log.ops[name][prefill].sum()) for name in ("new_tokens", "asked_tokens", "hit_tokens"))
        assert fed + hit == asked == sum(len(prompt.text) for prompt in PROMPTS)
        assert hit > 2.9 * len(SHARED)


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_requests_that_give_up_memory_find_it_again(tiny_pool, cache):
    bare = TorchWorld(pool=tiny_pool, sampling=GREEDY)
    shapes = [forward.kv_shape.bytes_per_slot for forward in bare._forwards.values()]
    size = {"num_blocks": 16, "block_tokens": 4}
    limit = sum(shapes) * 64 + 64 * 3 * max(shapes)
    tokens, log = decoded(tiny_pool, "draft:3/target", size, batch=6, cache=cache, limit_bytes=limit)
    assert tokens == {prompt.request_id: trunk(tiny_pool, prompt, num_tokens=20) for prompt in PROMPTS}
    assert log.requests["preempted"].sum() > 0


def test_sizes_that_leave_no_room_are_refused(tiny_pool):
    with pytest.raises(ArgumentError, match=r"^`limit_bytes` of cpu must be > \d+, which 9 blocks of 4 tokens take"):
        decoded(tiny_pool, "plain", {"num_blocks": 9, "block_tokens": 4}, limit_bytes=1000)
    with pytest.raises(ArgumentError, match=r"^`prefix_cache` must fit into the \d+ bytes of cpu, got \d+, which"):
        decoded(tiny_pool, "plain", {"num_blocks": 10**12, "block_tokens": 4})


@pytest.mark.parametrize("error", NO_MEMORY)
def test_a_device_without_room_for_the_blocks_says_so(tiny_pool, monkeypatch, error):
    """What is free, beside weights and other programs, nobody knows beforehand."""

    def none(size, dtype, device):
        if prod(size):
            raise error("no memory")
        return zeros(size, dtype, device)

    monkeypatch.setattr("paceline.runtime.prefix_caches.zeros", none)
    with pytest.raises(MemoryError, match=r"^cpu has no room for a prefix cache of 9 blocks of 4 tokens$"):
        decoded(tiny_pool, "plain", {"num_blocks": 9, "block_tokens": 4})


@pytest.mark.parametrize("cache", ["slots", "mask"])
@pytest.mark.parametrize("error", NO_MEMORY)
def test_rows_stay_as_long_as_they_are_where_no_memory_is_left(tiny_pool, monkeypatch, cache, error):
    """A prompt that moved to blocks leaves a long row behind; a shorter copy of it would need memory, too."""
    prompt = Prompt(request_id="long", text=2 * SHARED + SHARED[:10])
    most = []

    def no_less(size, dtype, device):
        if dtype == torch.bool:  # of masks, which are not the caches
            return zeros(size, dtype, device)
        if prod(size) < max(most, default=0):
            raise error("no memory")
        most.append(prod(size))
        return zeros(size, dtype, device)

    memory = Memory(cache=cache, prefixes=PrefixCacheSize(num_blocks=40, block_tokens=4))
    ran = Offline(tiny_pool, "plain", prompts=[prompt], memory=memory)
    monkeypatch.setattr("paceline.runtime.caches.zeros", no_less)
    ran.run()
    assert ran.failed == {}
    assert ran.texts == [trunk(tiny_pool, prompt)]


def test_a_batch_has_to_fit_beside_prefix_caches(tiny_pool, monkeypatch):
    per_token = sum(member.kv_bytes_per_token for member in tiny_pool.members if member.model is not None)
    longest = max(len(tiny_pool.tokenizer.encode(prompt.text)) for prompt in PROMPTS) + 20
    size = {"num_blocks": 30, "block_tokens": 4}
    has = 3 * (longest + 8) * per_token
    monkeypatch.setattr("paceline.runtime.decode.total_bytes", lambda device: has)
    decoded(tiny_pool, "plain", {"num_blocks": 1, "block_tokens": 4}, batch=3)
    with pytest.raises(
        ArgumentError, match=r"batch must fit into memory: 3 .* and prefix caches of 120 tokens each take"
    ):
        decoded(tiny_pool, "plain", size, batch=3)
    decoded(tiny_pool, "plain", size, batch=3, limit_bytes=10**9)


@pytest.mark.parametrize(("batch", "cache", "num_blocks"), [(1, "mask", 200), (3, "slots", 12)])
def test_both_worlds_find_the_same_in_prefix_caches(batch, cache, num_blocks):
    """Twelve blocks are fewer than six texts fill: some are evicted."""
    prompts = random_prompts(6, seed=9)
    prompts = [replace(one, text=f"{prompts[0].text} t3 t1 t4 t1 {one.text}") for one in prompts]
    policies = ["draft:3/mid:4/target", "tree,through=mid", "tree-dynamic", "pearl,window=2", "dsi", "pipespec"]
    found = agree(
        tiny_pool_of_four(), prompts, policies, sampling=COUPLED, max_new_tokens=8, batch=batch, cache=cache,
        reach=10, run=6, prefix_cache=num_blocks, block_tokens=4,
    )  # fmt: skip
    assert found.agree
    for one in found.policies:
        assert one.num_left == 0
        assert 0 < one.num_hit_tokens < one.num_asked_tokens
        assert (one.num_evicted_blocks > 0) == (num_blocks == 12)


def test_blocks_enter_in_the_order_of_an_operation():
    """Not in that of a cache's rows, which later ones fill as they get free: where not all fits, it matters."""
    prompts = random_prompts(9, seed=3)
    prompts = [
        replace(one, text=f"{prompts[0].text[: 6 * (number % 4)]}{one.text}") for number, one in enumerate(prompts)
    ]
    found = agree(
        tiny_pool_of_four(), prompts, ["plain", "draft:3/target", "tree,through=mid"], sampling=COUPLED,
        max_new_tokens=7, batch=4, reach=8, run=4, prefix_cache=8, block_tokens=2,
    )  # fmt: skip
    assert found.agree
    assert all(one.num_evicted_blocks for one in found.policies)
