"""Token trees on real models: the text is the target's, and replay of a recording with trees takes the same steps."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.decoding.trees import ROOT, Growth, tree_shape
from paceline.policies import make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.recording.branches import text_logits
from paceline.runtime.recording.recorder import record
from paceline.runtime.sampling import noise_of
from paceline.runtime.threads import Memory
from paceline.runtime.trees import ranked
from paceline.studies.agree import agree
from paceline.studies.record import tree_of
from paceline.traces.contexts.store import read_trace
from paceline.traces.meta import Closure, Sampling

from ...decoding.trees.test_shapes import shapes
from ...pairs import pairs
from ...tiny_models import EOS, VOCABULARY, random_prompts, tiny_pool_of_four

GREEDY = Sampling(mode="greedy")
PROMPTS = random_prompts(6, seed=4)
COUPLED = Sampling(mode="coupled", temperature=0.8, seed=7)
SAMPLINGS = (GREEDY, COUPLED, Sampling(mode="coupled", temperature=1.0, seed=2, top_k=3))
TREES = (
    "tree",
    "tree,shape=0+0.0+0.1+1+1.0+1.2,through=mid",
    "tree,draft=mid,shape=2x2x2",
    "tree-dynamic",
    "tree-dynamic,draft=mid,beams=3,depth=6,tokens=9,through=slim",
    "per-tag,default=tree,a=draft:4/target",
)


def answers(policy, *, sampling=GREEDY, batch=1, num_tokens=24, prompts=PROMPTS, **memory):
    pool = tiny_pool_of_four()
    decider = make_policy(policy, loaded_pool(pool))
    outputs, log = decode(
        pool, decider, prompts, sampling=sampling, max_new_tokens=num_tokens, name=policy, batch=batch,
        memory=Memory(**memory), debug=True,
    )  # fmt: skip
    assert not any(output.error for output in outputs)
    return [list(output.tokens) for output in outputs], log


@pytest.mark.parametrize(("policy", "sampling", "batch", "cache"), pairs(TREES, SAMPLINGS, (1, 5), ("slots", "mask")))
def test_text_is_the_targets_own(policy, sampling, batch, cache):
    found, _ = answers(policy, sampling=sampling, batch=batch, cache=cache)
    assert found == plain_texts(sampling)


@lru_cache
def plain_texts(sampling):
    return answers("plain", sampling=sampling)[0]


@given(shapes, st.integers(1, 20), st.sampled_from(["slots", "mask"]), st.integers(1, 4))
def test_any_shape_does(shape, num_tokens, cache, batch):
    pool = tiny_pool_of_four()
    policy = make_policy("tree", loaded_pool(pool))
    policy.trees = (replace(policy.trees[0], shape=shape),)
    prompts = random_prompts(4, seed=num_tokens)
    given_to = {"sampling": COUPLED, "max_new_tokens": num_tokens, "name": "tree", "batch": batch}
    outputs, _ = decode(pool, policy, prompts, memory=Memory(cache=cache), debug=True, **given_to)
    plain, _ = answers("plain", sampling=COUPLED, num_tokens=num_tokens, prompts=prompts)
    assert [list(output.tokens) for output in outputs] == plain


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_memory_that_is_taken_in_the_middle_of_a_tree_changes_nothing(cache):
    plain, _ = answers("plain", num_tokens=48)
    # A step of slots of each member for three requests: six of them take it from one another.
    each = [member.kv_bytes_per_token * 64 for member in tiny_pool_of_four().members]
    found, log = answers("tree", num_tokens=48, batch=6, cache=cache, limit_bytes=3 * (each[1] + each[-1]))
    assert found == plain
    assert log.requests["preempted"].sum() > 0


def test_a_tree_wider_than_the_cache_fails_its_request_alone():
    pool = tiny_pool_of_four()
    each = [member.kv_bytes_per_token * 64 for member in pool.members]
    short, long = random_prompts(1, seed=1, longest=3)[0], random_prompts(1, seed=5, longest=12)[0]
    prompts = (replace(short, request_id="fits", tag="a"), replace(long, request_id="grows", tag="b"))
    policy, memory = "per-tag,default=plain,b=tree(shape=100)", Memory(limit_bytes=each[1] + each[-1])
    decider = make_policy(policy, loaded_pool(pool))
    outputs, _ = decode(pool, decider, prompts, sampling=GREEDY, max_new_tokens=12, name="wide", memory=memory)
    errors = {output.request_id: output.error for output in outputs}
    assert not errors["fits"]
    assert "the KV limit is" in str(errors["grows"])


def test_rejection_sampling_is_refused():
    with pytest.raises(ArgumentError, match=r"policy tree drafts token trees, .*, got rejection"):
        answers("tree", sampling=Sampling(mode="rejection", temperature=1.0, seed=1))


@pytest.mark.parametrize("text", ["draft", "draft:", ":4", "draft:0", "dr aft:4", "draft:4y"])
def test_trees_to_record_are_checked(text):
    with pytest.raises(ArgumentError, match="`trees` "):
        tree_of(text)


@pytest.mark.parametrize("name", ["target", "ngram", "none"])
def test_trees_of_members_that_draft_none_are_refused(name, tmp_path):
    closure = Closure(kind="monotone", reach=2, run=2, trees=(tree_of(f"{name}:2"),))
    pool, prompts = tiny_pool_of_four(), random_prompts(1)
    with pytest.raises(ArgumentError, match="`trees` must be of a model below the target"):
        record(pool, prompts, sampling=GREEDY, closure=closure, max_new_tokens=2, out=tmp_path / "a.trace")


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_recording_holds_the_trees_from_every_context_of_the_trunk(sampling, tmp_path):
    """By definition: grown from logits of whole texts, without a cache."""
    texts = ("3x2x1", "beam=3,depth=4,tokens=7")
    closure = Closure(kind="monotone", reach=3, run=2, trees=tuple(tree_of(f"mid:{text}") for text in texts))
    pool, prompts, budget = tiny_pool_of_four(), random_prompts(2, seed=8), 8
    out = tmp_path / "a.trace"
    record(pool, prompts, sampling=sampling, closure=closure, max_new_tokens=budget, out=out)
    drafter = pool.members[2].model
    for request in read_trace(out).requests:
        trie, noise = request.trie, noise_of(sampling, request.request_id, VOCABULARY)
        children = {
            (parent, token): node for node, (parent, token) in enumerate(zip(trie.parent, trie.token, strict=True))
        }
        answer = trie.token[trie.trunk[1:]].tolist()
        for start, shape in ((start, tree_shape(text)) for start in range(len(answer)) for text in texts):
            growth = Growth(shape, room=budget - start, eos=frozenset({EOS}))
            nodes = {ROOT: start}
            while growth.asks:
                found = []
                for node, width in growth.asks:
                    path = [growth.tokens[each] for each in growth.path_to(node)]
                    text = [*request.prompt, *answer[:start], *path]
                    found.append(branches(drafter, text, start + len(path), width, sampling, noise))
                    assert trie.ranks.ranked[0, nodes[node]] >= width
                    for rank, (token, log_prob) in enumerate(zip(*found[-1][:2], strict=True)):
                        child = children[nodes[node], token]
                        assert trie.ranks.rank[0, child] == rank
                        assert trie.ranks.branch_log_prob[0, child] == pytest.approx(log_prob, abs=2 / 1024)
                first, asks = len(growth.tokens), growth.asks
                assert asks
                growth.take(found)
                for node in range(first, len(growth.tokens)):
                    nodes[node] = children[nodes[growth.parents[node]], growth.tokens[node]]


def branches(model, text, position, width, sampling, noise):
    logits = text_logits(model, text, 1) / (sampling.temperature or 1.0)
    if sampling.top_k:
        least = logits.topk(sampling.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    scores = logits if noise is None else logits + torch.from_numpy(noise.at(position))
    return ranked(scores, [width])[0]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(1, 14))
def test_branches_are_the_best_and_equal_ones_rank_by_token(scores, width):
    found = ranked(torch.tensor([scores], dtype=torch.float32), [width])[0]
    assert found.tokens == sorted(range(len(scores)), key=lambda token: (-scores[token], token))[:width]
    assert found.tokens[0] == int(np.argmax(scores))


def test_tokens_that_sampling_leaves_out_are_no_branches():
    scores = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]])
    assert ranked(scores, [4])[0].tokens == [2, 0]


@pytest.mark.parametrize(
    ("sampling", "batch", "cache"), [*zip(SAMPLINGS, (8, 1, 8), ("mask", "slots", "mask"), strict=True)]
)
def test_both_worlds_take_the_same_steps(sampling, batch, cache):
    found = agree(
        tiny_pool_of_four(), random_prompts(4, seed=9), list(TREES), sampling=sampling, max_new_tokens=12,
        batch=batch, cache=cache, reach=7, run=3,
    )  # fmt: skip
    assert found.agree
    assert all(one.num_left == 0 for one in found.policies)
    assert sum(one.num_steps for one in found.policies) > 100
