"""Decoding with prefix caches: the same text as without, fewer tokens read, the same evictions in both worlds."""

from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np
import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.decoding.prefix_cache import PrefixCacheSize
from paceline.runtime import caches
from paceline.runtime.caches import NO_MEMORY
from paceline.runtime.prompts import Prompt
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from paceline.studies.agree import agree

from ..pairs import pairs
from ..tiny_models import random_prompts, tiny_pool_of_four
from . import offline
from .offline import COUPLED, GREEDY, Offline, trunk

SHARED = "the riders pace the line, and "
TEXTS = ("", "then they draft", "then they go", "we", "then they draft", "the riders")
PROMPTS = tuple(
    Prompt(request_id=str(number), text=SHARED + text if number < 5 else text) for number, text in enumerate(TEXTS)
)
AMPLE, SCANT, NINE = (40, 4), (5, 3), (9, 4)  # blocks, tokens of each
COUNTS = ("asked_tokens", "hit_tokens", "entered_blocks", "evicted_blocks")
POLICIES = ("plain", "draft:3/target", "draft:2/mid:4/target", "tree", "pearl,window=2", "pipespec,window=2")


def memory_of(size, **options):
    return Memory(prefixes=PrefixCacheSize(num_blocks=size[0], block_tokens=size[1]), **options)


def decoded(pool, policy, size, *, sampling=GREEDY, batch=1, **options):
    outputs, log = offline.decoded(
        pool,
        policy,
        PROMPTS,
        sampling=sampling,
        num_tokens=20,
        batch=batch,
        memory=memory_of(size, **options),
        debug=True,
    )
    assert not [output.error for output in outputs if output.error]
    return [list(output.tokens) for output in outputs], log


@pytest.fixture(scope="module")
def trunks(tiny_pool):
    return lru_cache(lambda sampling: [trunk(tiny_pool, one, sampling=sampling, num_tokens=20) for one in PROMPTS])


@pytest.mark.parametrize(
    ("policy", "cache", "batch", "size", "sampling"),
    pairs(POLICIES, ("slots", "mask"), (1, 8), (AMPLE, SCANT), (COUPLED, GREEDY)),
)
@pytest.mark.one_in(2)
def test_the_text_is_the_targets_own(tiny_pool, trunks, policy, batch, cache, size, sampling):
    tokens, log = decoded(tiny_pool, policy, size, batch=batch, cache=cache, sampling=sampling)
    assert tokens == trunks(sampling)
    assert log.ops["hit_tokens"].sum() > 0


@pytest.mark.parametrize("policy", ["pearl,window=3", "pipespec,window=2"])
def test_threads_find_and_evict_as_turns_do(tiny_pool, policy):
    turns, threads = (
        Offline(tiny_pool, policy, PROMPTS, memory=memory_of((9, 3)), overlap=overlap).run(batch=3)
        for overlap in ("turns", "threads")
    )
    assert turns.texts == threads.texts
    for name in COUNTS:
        assert turns.log.ops[name].tolist() == threads.log.ops[name].tolist()
        assert turns.log.ops[name].sum() > 0


@pytest.mark.parametrize("batch", [1, 8])
def test_what_is_found_is_not_fed(tiny_pool, batch):
    """Of the prompts together as many tokens are fed as they differ in, whoever comes first."""
    _, log = decoded(tiny_pool, "plain", (200, 4), batch=batch)
    prefill = np.isin(np.arange(len(log.ops["level"])), log.steps["op"][log.steps["prefill"] == 1])
    fed, asked, hit = (int(log.ops[name][prefill].sum()) for name in ("new_tokens", "asked_tokens", "hit_tokens"))
    assert fed + hit == asked == sum(len(prompt.text) for prompt in PROMPTS)
    assert hit > 2.9 * len(SHARED)


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_requests_that_give_up_memory_find_it_again(tiny_pool, trunks, cache):
    bare = TorchWorld(pool=tiny_pool, sampling=GREEDY)
    shapes = [forward.kv_shape.bytes_per_slot for forward in bare._forwards.values()]
    limit = sum(shapes) * 64 + 64 * 3 * max(shapes)
    tokens, log = decoded(tiny_pool, "draft:3/target", (16, 4), batch=6, cache=cache, limit_bytes=limit)
    assert tokens == trunks(GREEDY)
    assert log.requests["preempted"].sum() > 0


def test_sizes_that_leave_no_room_are_refused(tiny_pool, monkeypatch):
    with pytest.raises(ArgumentError, match=r"^`limit_bytes` of cpu must be > \d+, which 9 blocks of 4 tokens take"):
        decoded(tiny_pool, "plain", NINE, limit_bytes=1000)
    with pytest.raises(ArgumentError, match=r"^`prefix_cache` must fit into the \d+ bytes of cpu, got \d+, which"):
        decoded(tiny_pool, "plain", (10**12, 4))
    # A batch has to fit beside them, unless a limit has requests preempted.
    per_token = sum(member.kv_bytes_per_token for member in tiny_pool.members if member.model is not None)
    has = 3 * (max(len(prompt.text) for prompt in PROMPTS) + 28) * per_token
    monkeypatch.setattr("paceline.runtime.decode.total_bytes", lambda device: has)
    decoded(tiny_pool, "plain", (1, 4), batch=3)
    with pytest.raises(ArgumentError, match=r"batch must fit into memory: 3 .* and prefix caches of 120 tokens each"):
        decoded(tiny_pool, "plain", (30, 4), batch=3)
    decoded(tiny_pool, "plain", (30, 4), batch=3, limit_bytes=10**9)


@pytest.mark.parametrize("error", NO_MEMORY)
def test_a_device_without_room_for_the_blocks_says_so(tiny_pool, monkeypatch, error):
    """What is free, beside weights and other programs, nobody knows beforehand."""
    zeros = caches.zeros

    def none(size, dtype, device):
        if prod(size):
            raise error("no memory")
        return zeros(size, dtype, device)

    monkeypatch.setattr("paceline.runtime.prefixed_kv.zeros", none)
    with pytest.raises(MemoryError, match=r"^cpu has no room for a prefix cache of 9 blocks of 4 tokens$"):
        decoded(tiny_pool, "plain", NINE)


@pytest.mark.parametrize("cache", ["slots", "mask"])
@pytest.mark.parametrize("error", NO_MEMORY)
def test_rows_stay_as_long_as_they_are_where_no_memory_is_left(tiny_pool, monkeypatch, cache, error):
    """A prompt that moved to blocks leaves a long row behind; a shorter copy of it would need memory, too."""
    prompt, most, zeros = Prompt(request_id="long", text=2 * SHARED + SHARED[:10]), [0], caches.zeros

    def no_less(size, dtype, device):
        if dtype != torch.bool:  # of masks, which are not the caches
            if prod(size) < max(most):
                raise error("no memory")
            most.append(prod(size))
        return zeros(size, dtype, device)

    ran = Offline(tiny_pool, "plain", [prompt], memory=memory_of(AMPLE, cache=cache))
    monkeypatch.setattr(caches, "zeros", no_less)
    ran.run()
    assert ran.failed == {}
    assert ran.texts == [trunk(tiny_pool, prompt)]


def both_worlds(prompts, policies, **options):
    found = agree(tiny_pool_of_four(), prompts, policies, sampling=COUPLED, **options)
    assert found.agree
    return found.policies


@pytest.mark.parametrize(("batch", "cache", "num_blocks"), [(1, "mask", 200), (3, "slots", 12)])
def test_both_worlds_find_the_same_in_prefix_caches(batch, cache, num_blocks):
    """Twelve blocks are fewer than six texts fill: some are evicted."""
    prompts = random_prompts(6, seed=9)
    prompts = [replace(one, text=f"{prompts[0].text} t3 t1 t4 t1 {one.text}") for one in prompts]
    policies = ["draft:3/mid:4/target", "tree,through=mid", "tree-dynamic", "pearl,window=2", "dsi", "pipespec"]
    sizes = {"max_new_tokens": 8, "reach": 10, "run": 6, "prefix_cache": num_blocks, "block_tokens": 4}
    for one in both_worlds(prompts, policies, batch=batch, cache=cache, **sizes):
        assert one.num_left == 0
        assert 0 < one.num_hit_tokens < one.num_asked_tokens
        assert (one.num_evicted_blocks > 0) == (num_blocks == 12)


def test_blocks_enter_in_the_order_of_an_operation():
    """Not in that of a cache's rows, which later ones fill as they get free: where not all fits, it matters."""
    prompts = random_prompts(9, seed=3)
    first = prompts[0].text
    prompts = [replace(one, text=f"{first[: 6 * (number % 4)]}{one.text}") for number, one in enumerate(prompts)]
    policies, sizes = ["plain", "draft:3/target", "tree,through=mid"], {"prefix_cache": 8, "block_tokens": 2}
    found = both_worlds(prompts, policies, max_new_tokens=7, batch=4, reach=8, run=4, **sizes)
    assert all(one.num_evicted_blocks for one in found)
