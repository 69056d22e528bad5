"""Decoding with prefix caches: the same text as without, fewer tokens read, and refusals by name."""

import numpy as np
import pytest
from paceline.arguments import ArgumentError
from paceline.decoding.prefixes.size import PrefixCacheSize
from paceline.policies import PolicyError, make_policy
from paceline.runtime.decode import decode
from paceline.runtime.memory import Memory
from paceline.runtime.pools.loaded_members import loaded_pool
from paceline.runtime.prompts import Prompt
from paceline.runtime.world import TorchWorld

from .offline import COUPLED, GREEDY, trunk

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


@pytest.mark.parametrize("cache", ["slots", "mask"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("policy", ["plain", "draft:3/target", "draft:2/mid:4/target", "tree"])
@pytest.mark.parametrize("size", [{"num_blocks": 40, "block_tokens": 4}, {"num_blocks": 5, "block_tokens": 3}])
def test_the_text_is_the_targets_own(tiny_pool, policy, batch, cache, size):
    for sampling in (GREEDY, COUPLED):
        tokens, log = decoded(tiny_pool, policy, size, batch=batch, cache=cache, sampling=sampling)
        assert tokens == {
            prompt.request_id: trunk(tiny_pool, prompt, sampling=sampling, num_tokens=20) for prompt in PROMPTS
        }
        assert log.ops["hit_tokens"].sum() > 0


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


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("pearl,window=2", "nobody works ahead over a prefix cache"),
    ],
)
def test_steps_that_do_not_go_with_it_are_refused_by_name(tiny_pool, policy, says):
    with pytest.raises(PolicyError, match=says):
        decoded(tiny_pool, policy, {"num_blocks": 40, "block_tokens": 4})
