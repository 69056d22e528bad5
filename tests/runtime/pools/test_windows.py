"""Sliding windows: the recorder's trunk and every answer of the runtime are the text of `generate()`."""

import numpy as np
import pytest
import torch
from paceline.policies import make_policy
from paceline.reports.summary import summarise_run
from paceline.runtime.decode import decode
from paceline.runtime.forward import layer_windows, within_window
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording.branches import TreeForward, causal_mask, tree_mask
from paceline.runtime.recording.recorder import record
from paceline.runtime.threads import Memory
from paceline.sim import Scenario, TrieTables, simulate
from paceline.sim.recorded import recorded_pool
from paceline.traces.meta import Closure, Sampling, TreeClosure

from ...unit_cost import UnitCost
from ..tiny_decoders import tiny_decoder, without_cache
from .window_pools import ENDS, FAMILIES, WINDOW, generated, stock, write_window_pool

GREEDY = Sampling(mode="greedy")
TREES = tuple(TreeClosure(model="draft", shape=shape) for shape in ("3x2x1", "beam=4,depth=4"))
NUM_TOKENS = 30
# All but one are longer than the window.
PROMPTS = tuple(
    Prompt(request_id=f"r{row}", text=text)
    for row, text in enumerate(
        ("a", "hello there, how do you do?", "the cat, the cat, the ca", "we go on and on, we go")
    )
)
POLICIES = ("plain", "draft:5/target", "ngram:3/draft:4/target", "tree,shape=3x2x1", "tree-dynamic,depth=4,tokens=8")


@pytest.fixture(scope="module", params=FAMILIES)
def pool_and_answers(request, tmp_path_factory, tiny_pool):
    """A pool, and what `generate()` answers to each prompt."""
    folder = write_window_pool(tmp_path_factory.mktemp("windows"), request.param, tiny_pool.tokenizer)
    pool, model = ModelPool.load(folder), stock(folder)
    return pool, [generated(model, pool.encode(prompt.text), NUM_TOKENS) for prompt in PROMPTS]


def test_a_pool_of_windows_is_one(pool_and_answers):
    pool, answers = pool_and_answers
    assert WINDOW in layer_windows(pool.target.model.config) or 5 in layer_windows(pool.target.model.config)
    assert pool.eos_token_ids == tuple(ENDS)
    assert len({tuple(answer) for answer in answers}) == len(answers)
    assert len({token for answer in answers for token in answer}) > 4


@pytest.mark.parametrize("cache", ["slots", "mask"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_run_answers_as_generate_does(pool_and_answers, policy, batch, cache):
    pool, answers = pool_and_answers
    outputs, _ = decode(
        pool,
        make_policy(policy, loaded_pool(pool)),
        PROMPTS,
        sampling=GREEDY,
        max_new_tokens=NUM_TOKENS,
        name=policy,
        batch=batch,
        memory=Memory(cache=cache),
        debug=True,
    )
    assert [list(output.tokens) for output in outputs] == answers


def test_the_trunk_is_the_text_of_generate_and_replay_gives_it(pool_and_answers, tmp_path):
    pool, answers = pool_and_answers
    trace = record(
        pool,
        PROMPTS,
        sampling=GREEDY,
        closure=Closure(kind="monotone", reach=8, run=6, trees=TREES),
        max_new_tokens=NUM_TOKENS,
        out=tmp_path / "w.trace",
    )
    assert [request.trie.token[request.trie.trunk[1:]].tolist() for request in trace.requests] == answers
    for policy in POLICIES:
        tokens: dict[str, list[int]] = {}
        scenario = Scenario(tables=TrieTables(trace), cost=UnitCost())
        log = simulate(scenario, make_policy(policy, recorded_pool(trace)), policy, outputs=tokens)
        assert [tokens[prompt.request_id] for prompt in PROMPTS] == answers
        assert summarise_run(log).exact_share == 1.0


def test_the_draft_off_the_trunk_sees_its_window_too(pool_and_answers):
    """A token tree's contexts, of which each goes its own way, have the logits of their texts."""
    pool, _ = pool_and_answers
    for member in pool.members[1:]:
        forward, text = TreeForward(member.model), pool.encode(PROMPTS[1].text)
        forward.append(text, range(len(text)), causal_mask(0, len(text)))
        last, path = np.array([9, 15, 20], dtype=np.int32), np.zeros((3, 0), dtype=np.int32)
        tokens = [3, 4, 5]
        for depth in range(1, 7):
            first = forward.num_slots
            found = forward.append(tokens, last + depth, tree_mask(last, path, first))
            path = np.column_stack([path, first + np.arange(3, dtype=np.int32)])
            for row, end in enumerate(last.tolist()):
                context = text[: end + 1] + [3 + row] * depth
                expected = without_cache(member.model, context)[-1]
                assert torch.allclose(found[row], expected, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("window", [1, 3, 4, 50])
def test_the_last_tokens_of_a_window_are_counted_along_the_row(window):
    generator = torch.Generator().manual_seed(0)
    looks = torch.rand((2, 1, 5, 20), generator=generator) < 0.6
    narrow = within_window(looks, window)
    for row, kept in zip(looks.flatten(0, 2), narrow.flatten(0, 2), strict=True):
        assert kept.nonzero().flatten().tolist() == row.nonzero().flatten().tolist()[-window:]


def test_windows_of_a_config():
    assert layer_windows(tiny_decoder("llama").config) == (None, None)
    assert layer_windows(tiny_decoder("mistral-window").config) == (4, 4)
    assert layer_windows(tiny_decoder("qwen2-window").config) == (None, 4)
    assert layer_windows(tiny_decoder("gemma3").config) == (4, None)
    assert layer_windows(tiny_decoder("qwen2", use_sliding_window=False, sliding_window=4).config) == (None, None)
