"""Rollouts on models: every path is what its own prompt alone is answered, whoever drafts and whoever else runs."""

from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.decoding.prefix_cache import PrefixCacheSize
from paceline.decoding.rollouts import rollouts_of
from paceline.runtime.coupled_noise import RequestNoise
from paceline.runtime.threads import Memory
from paceline.traces.meta import Sampling

from ..pairs import pairs
from .conftest import ALPHABET
from .offline import COUPLED, GREEDY, PROMPTS, decoded, logits_after

REJECTION = Sampling(mode="rejection", temperature=0.9, seed=5)
BRANCHING = "2@0/2@5/2@11"
NUM_TOKENS = 18


def rolled(
    pool, policy="draft:2/mid:4/target", *, rollouts=BRANCHING, prompts=PROMPTS[1:3], sampling=COUPLED, **options
):
    options = {"num_tokens": NUM_TOKENS, "batch": 3, "debug": True} | options
    return decoded(pool, policy, prompts, sampling=sampling, rollouts=rollouts_of(rollouts), **options)


def alone(pool, request_id, prompt, budget):
    """What the target samples after a prompt under an id, by definition: no cache, no loop, no session."""
    model = pool.target.model
    noise = RequestNoise(seed=COUPLED.seed, request_id=request_id, vocab_size=model.config.vocab_size)
    answer = []
    while len(answer) < budget and not (answer and answer[-1] in pool.eos_token_ids):
        scores = logits_after(model, [*prompt, *answer]) / COUPLED.temperature
        answer.append(int((scores + torch.from_numpy(noise.at(len(answer)))).argmax()))
    return answer


def answered(outputs):
    return {one.request_id: (one.parent, one.depth, list(one.tokens)) for one in outputs if not one.error}


@pytest.fixture(scope="module")
def paths(tiny_pool):
    """Answers by path, worked out from the definition: (parent, depth, whole answer)."""
    found = {}
    for prompt in PROMPTS[1:3]:
        ids = tiny_pool.encode(prompt.text)
        found[prompt.request_id] = ("", 0, alone(tiny_pool, prompt.request_id, ids, NUM_TOKENS))
        for fork in rollouts_of(BRANCHING).forks(prompt.request_id):
            before = found.get(fork.parent_id, ("", 0, []))[2]
            ends = len(before) == fork.depth and fork.depth and before[-1] in tiny_pool.eos_token_ids
            if len(before) < fork.depth or ends:
                continue
            shared = before[: fork.depth]
            own = alone(tiny_pool, fork.request_id, [*ids, *shared], NUM_TOKENS - fork.depth)
            found[fork.request_id] = (fork.parent_id, fork.depth, [*shared, *own])
    assert len({tuple(answer) for _, _, answer in found.values()}) == len(found) >= 10
    return found


@pytest.mark.parametrize(
    ("policy", "cache", "batch"),
    pairs(["plain", "draft:3/target", "draft:2/mid:4/target", "slim:4/target", "ngram"], ["slots", "mask"], [1, 3, 20]),
)
def test_every_path_is_what_its_prompt_alone_is_answered(tiny_pool, paths, policy, cache, batch):
    outputs, log = rolled(tiny_pool, policy, memory=Memory(cache=cache), batch=batch)
    assert answered(outputs) == paths
    assert all(one.text == tiny_pool.decode(list(one.tokens)) for one in outputs)
    assert log.meta["rollouts"] == BRANCHING
    assert len(outputs) == 2 * rollouts_of(BRANCHING).num_paths


@pytest.mark.parametrize(
    ("shared_attention", "cache", "num_blocks"), pairs(["on", "off", "auto"], ["slots", "mask"], [6, 60])
)
def test_a_prefix_cache_changes_no_path(tiny_pool, paths, shared_attention, cache, num_blocks):
    """Whether paths share blocks, whether some are evicted, and whether attention over them is computed once."""
    prefixes = PrefixCacheSize(num_blocks=num_blocks, block_tokens=4)
    memory = Memory(cache=cache, prefixes=prefixes, shared_attention=shared_attention)
    outputs, log = rolled(tiny_pool, memory=memory, batch=6, forward="fused")
    assert answered(outputs) == paths
    assert log.meta["shared_attention"] == dict.fromkeys(["draft", "mid", "slim", "target"], shared_attention)


def test_outputs_say_which_members_attend_row_by_row(tiny_pool):
    memory = Memory(prefixes=PrefixCacheSize(num_blocks=60, block_tokens=4), shared_attention="on")
    _, log = rolled(tiny_pool, memory=memory, forward="modules")
    assert log.meta["shared_attention"] == dict.fromkeys(["draft", "mid", "slim", "target"], "modules")
    _, log = rolled(tiny_pool, rollouts="1@0")
    assert "shared_attention" not in log.meta
    with pytest.raises(ArgumentError, match=r"`shared_attention` goes with `prefix_cache`, got on without one"):
        Memory(shared_attention="on")
    with pytest.raises(ArgumentError, match=r"`shared_attention` must be one of auto, on, off, got 'often'"):
        Memory(shared_attention="often")


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rollouts=st.lists(st.integers(0, 15), min_size=1, max_size=3, unique=True).map(
        lambda depths: "/".join(f"2@{depth}" for depth in sorted(depths))
    ),
    policy=st.sampled_from(["plain", "draft:3/target", "draft:2/mid:4/target"]),
    sampling=st.sampled_from([COUPLED, REJECTION]),
    batch=st.integers(1, 6),
)
def test_the_first_path_is_the_run_without_rollouts(tiny_pool, rollouts, policy, sampling, batch):
    outputs, _ = rolled(tiny_pool, policy, rollouts=rollouts, sampling=sampling, batch=batch)
    single, _ = rolled(tiny_pool, policy, rollouts="1@0", sampling=sampling, batch=1)
    assert [one for one in outputs if not one.parent] == list(single)


def test_rejection_sampling_draws_a_path_as_its_prompt_alone(tiny_pool):
    """A child's stream begins with it: it is the same whether its parent ran beside it or not."""
    together, _ = rolled(tiny_pool, sampling=REJECTION, batch=8)
    apart, _ = rolled(tiny_pool, sampling=REJECTION, batch=1)
    assert together == apart
    assert len({one.tokens for one in together}) > 4


def test_as_many_requests_run_as_the_batch_allows(tiny_pool):
    for batch in (1, 2, 5):
        _, log = rolled(tiny_pool, "plain", batch=batch)
        assert log.ops["num_rows"].max() == batch


def test_a_path_whose_parent_ended_before_fails_by_name_and_no_other_does(tiny_pool, paths):
    outputs, log = rolled(tiny_pool, rollouts="3@0/2@17", prompts=PROMPTS, batch=4)
    failed = [one for one in outputs if one.error]
    ended = {one.request_id: one for one in outputs if not one.error}
    assert failed
    for one in failed:
        parent = ended[one.parent]
        assert parent.finish_reason == "eos"
        assert len(parent.tokens) <= 17
        told = f"must leave {one.parent} after 17 tokens of answer, which ended after {len(parent.tokens)}"
        assert one.error == f"request {one.request_id}: {told}"
        assert (one.tokens, one.text, one.finish_reason) == ((), "", "error")
    assert Counter(log.requests["failed"].tolist()) == Counter(one.error for one in outputs)
    assert len(outputs) == 6 * len(PROMPTS)


def test_paths_of_a_path_that_never_started_fail_with_it(tiny_pool):
    outputs, _ = rolled(tiny_pool, rollouts="2@16/2@17", prompts=PROMPTS[:1])
    reasons = {one.request_id: one.error for one in outputs}
    length = len(outputs[0].tokens)
    assert length < 16
    assert reasons == {
        "one": "",
        "one.1": f"request one.1: must leave one after 16 tokens of answer, which ended after {length}",
        "one.2": f"request one.2: must leave one after 17 tokens of answer, which ended after {length}",
        "one.1.1": "request one.1.1: must leave one.1 after 17 tokens of answer, which never started",
    }


def test_a_stop_string_ends_a_path_where_it_ends_the_whole_answer(tiny_pool, paths):
    """Also where it begins before the branch and ends behind it."""
    name = next(name for name, (_, depth, answer) in paths.items() if depth == 11 and len(answer) > 12)
    parent, depth, answer = paths[name]
    stop = "".join(ALPHABET[token] for token in answer[depth - 1 : depth + 1])
    outputs, _ = rolled(tiny_pool, stop=(stop,))
    found = {one.request_id: one for one in outputs}
    assert stop not in "".join(ALPHABET[token] for token in answer[:depth])
    assert list(found[name].tokens) == answer[: depth + 1]
    assert found[name].finish_reason == "stop"
    assert found[name].parent == parent


def test_greedy_paths_are_refused_by_name(tiny_pool):
    with pytest.raises(ArgumentError, match=r"`rollouts` must be sampled .* got 2@0 with greedy"):
        rolled(tiny_pool, rollouts="2@0", sampling=GREEDY)
    assert len(rolled(tiny_pool, rollouts="1@0", sampling=GREEDY)[0]) == 2
