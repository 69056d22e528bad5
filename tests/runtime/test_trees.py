"""Token trees on real models: the text is the target's, and replay of a recording with trees takes the same steps."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.decoding.trees import ROOT, Growth, tree_shape
from paceline.policies import make_policy
from paceline.runtime.coupled_noise import noise_of
from paceline.runtime.pools.members import describe_model, loaded_pool
from paceline.runtime.recording.recorder import record
from paceline.runtime.recording.together import text_logits
from paceline.runtime.threads import Memory
from paceline.runtime.trees import ranked
from paceline.studies.agree import agree
from paceline.studies.record import tree_of
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Closure, Sampling
from transformers import GPT2Config, GPT2LMHeadModel

from ..decoding.test_trees import shapes
from ..pairs import pairs
from ..tiny_models import EOS, VOCABULARY, random_prompts, tiny_pool_of_four
from .offline import COUPLED, GREEDY, REJECTION, decoded
from .tiny_decoders import tiny_decoder, without_cache

PROMPTS = random_prompts(6, seed=4)
SAMPLINGS = (GREEDY, COUPLED, Sampling(mode="coupled", temperature=1.0, seed=2, top_k=3))
TREES = (
    "tree",
    "tree,shape=0+0.0+0.1+1+1.0+1.2,through=mid",
    "tree,draft=mid,shape=2x2x2",
    "tree-dynamic",
    "tree-dynamic,draft=mid,beams=3,depth=6,tokens=9,through=slim",
    "per-tag,default=tree,a=draft:4/target",
)


def answers(policy, prompts=PROMPTS, *, pool=None, memory=None, **options):
    outputs, log = decoded(
        pool or tiny_pool_of_four(), policy, prompts, memory=Memory(**(memory or {})), debug=True, **options
    )
    assert not any(output.error for output in outputs)
    return [list(output.tokens) for output in outputs], log


plain_texts = lru_cache(lambda sampling: answers("plain", sampling=sampling)[0])


@pytest.mark.parametrize(("policy", "sampling", "batch", "cache"), pairs(TREES, SAMPLINGS, (1, 5), ("slots", "mask")))
@pytest.mark.one_in(3)
def test_text_is_the_targets_own(policy, sampling, batch, cache):
    assert answers(policy, sampling=sampling, batch=batch, memory={"cache": cache})[0] == plain_texts(sampling)


@given(shapes, st.integers(1, 20), st.sampled_from(["slots", "mask"]), st.integers(1, 4))
def test_any_shape_does(shape, num_tokens, cache, batch):
    policy = make_policy("tree", loaded_pool(tiny_pool_of_four()))
    policy.trees = (replace(policy.trees[0], shape=shape),)
    prompts = random_prompts(4, seed=num_tokens)
    options = {"sampling": COUPLED, "num_tokens": num_tokens}
    found, _ = answers(policy, prompts, batch=batch, memory={"cache": cache}, **options)
    assert found == answers("plain", prompts, **options)[0]


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_memory_that_is_taken_in_the_middle_of_a_tree_changes_nothing(cache):
    plain, _ = answers("plain", num_tokens=48)
    # A step of slots of each member for three requests: six of them take it from one another.
    each = [member.kv_bytes_per_token * 64 for member in tiny_pool_of_four().members]
    memory = {"cache": cache, "limit_bytes": 3 * (each[1] + each[-1])}
    found, log = answers("tree", num_tokens=48, batch=6, memory=memory)
    assert found == plain
    assert log.requests["preempted"].sum() > 0


def test_a_tree_wider_than_the_cache_fails_its_request_alone():
    each = [member.kv_bytes_per_token * 64 for member in tiny_pool_of_four().members]
    short, long = random_prompts(1, seed=1, longest=3)[0], random_prompts(1, seed=5, longest=12)[0]
    prompts = (replace(short, request_id="fits", tag="a"), replace(long, request_id="grows", tag="b"))
    policy, memory = "per-tag,default=plain,b=tree(shape=100)", Memory(limit_bytes=each[1] + each[-1])
    fits, grows = decoded(tiny_pool_of_four(), policy, prompts, num_tokens=12, memory=memory)[0]
    assert not fits.error
    assert "the KV limit is" in grows.error


# -- models unlike the shipped pool's


POSITIONS = 40  # as many as texts of 12 words and 28 tokens of answer have


def gpt2(num_layers):
    """Learned positions, a tied head; a draft of fewer layers is the target's beginning."""
    torch.manual_seed(3)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=32, n_layer=num_layers, n_head=4, bos_token_id=None,
        eos_token_id=None, initializer_range=0.25, attn_implementation="sdpa",
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval().requires_grad_(requires_grad=False)


def decoder(family, num_layers, dtype=torch.float32):
    sizes = {"vocab_size": VOCABULARY, "num_hidden_layers": num_layers, "max_position_embeddings": POSITIONS}
    return tiny_decoder(family, dtype, seed=5, **sizes)


MAKERS = {
    "learned positions": gpt2,
    "tied heads": lambda num_layers: decoder("llama-ungrouped", num_layers),
    "biases": lambda num_layers: decoder("llama-biased", num_layers),
    "windows": lambda num_layers: decoder("mistral-window", num_layers),
    "windows in some layers": lambda num_layers: decoder("qwen2-window", num_layers),
    "bfloat16": lambda num_layers: decoder("llama", num_layers, torch.bfloat16),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.one_in(3)
def test_text_up_to_the_last_position_is_the_targets_own(kind):
    """Of bfloat16, whose forwards round by their width, up to a tie of the target's two best."""
    models, prompts = {"draft": MAKERS[kind](1), "target": MAKERS[kind](3)}, random_prompts(3, seed=2)
    members = tuple(describe_model(name, "model", model, None) for name, model in models.items())
    pool = replace(tiny_pool_of_four(), members=members, eos_token_ids=(), context_tokens=POSITIONS)
    texts = [pool.encode(prompt.text) for prompt in prompts]
    options = {"pool": pool, "num_tokens": POSITIONS - max(map(len, texts)), "batch": 2}
    plain, _ = answers("plain", prompts, **options)
    assert len({token for tokens in plain for token in tokens}) > 3
    for policy, cache in (("tree,shape=3x2x1", "slots"), ("tree-dynamic,depth=4,tokens=8", "mask")):
        found, _ = answers(policy, prompts, memory={"cache": cache}, **options)
        for text, tokens, expected in zip(texts, found, plain, strict=True):
            if tokens != expected:
                assert kind == "bfloat16"
                same = next(at for at, pair in enumerate(zip(tokens, expected, strict=True)) if pair[0] != pair[1])
                best = without_cache(pool.target.model, [*text, *expected[:same]])[-1].float().topk(2).values
                assert best[0] - best[1] <= 0.05 * best[0].abs()


# -- recordings with trees


def recorded(folder, sampling, trees, prompts, *, reach, budget):
    closure = Closure(kind="monotone", reach=reach, run=2, trees=tuple(tree_of(tree) for tree in trees))
    out = folder / "a.trace"
    record(tiny_pool_of_four(), prompts, sampling=sampling, closure=closure, max_new_tokens=budget, out=out)
    return read_trace(out)


def test_what_has_no_trees_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"policy p drafts token trees, .*, got rejection"):
        answers("tree", sampling=REJECTION)
    for text in ("draft", "draft:", ":4", "draft:0", "dr aft:4", "draft:4y"):
        with pytest.raises(ArgumentError, match="`trees` "):
            tree_of(text)
    for name in ("target", "ngram", "none"):
        with pytest.raises(ArgumentError, match="`trees` must be of a model below the target"):
            recorded(tmp_path, GREEDY, [f"{name}:2"], random_prompts(1), reach=2, budget=2)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.one_in(3)
def test_a_recording_holds_the_trees_from_every_context_of_the_trunk(sampling, tmp_path):
    """By definition: grown from logits of whole texts, without a cache."""
    texts, budget = ("3x2x1", "beam=3,depth=4,tokens=7"), 8
    trees = [f"mid:{text}" for text in texts]
    trace = recorded(tmp_path, sampling, trees, random_prompts(2, seed=8), reach=3, budget=budget)
    drafter = tiny_pool_of_four().members[2].model
    for request in trace.requests:
        trie, noise = request.trie, noise_of(sampling, request.request_id, VOCABULARY)
        children = {edge: node for node, edge in enumerate(zip(trie.parent, trie.token, strict=True))}
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
                first = len(growth.tokens)
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


@given(st.lists(st.integers(-3, 3) | st.just(-torch.inf), min_size=1, max_size=12), st.integers(1, 14))
def test_branches_are_the_best_and_equal_ones_rank_by_token(scores, width):
    """Tokens that sampling leaves out are none."""
    scores = [1, *scores]
    able = [token for token, score in enumerate(scores) if score > -torch.inf]
    found = ranked(torch.tensor([scores], dtype=torch.float32), [width])[0]
    assert found.tokens == sorted(able, key=lambda token: (-scores[token], token))[:width]


@pytest.mark.parametrize(
    ("sampling", "batch", "cache"), [*zip(SAMPLINGS, (8, 1, 8), ("mask", "slots", "mask"), strict=True)]
)
def test_both_worlds_take_the_same_steps(sampling, batch, cache):
    found = agree(
        tiny_pool_of_four(), random_prompts(2, seed=9), list(TREES), sampling=sampling, max_new_tokens=10,
        batch=batch, cache=cache, reach=7, run=3,
    )  # fmt: skip
    assert found.agree
    assert all(one.num_left == 0 for one in found.policies)
    assert sum(one.num_steps for one in found.policies) > 40
