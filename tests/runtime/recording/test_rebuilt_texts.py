"""The code of docs/checks.md, which knows nothing of paceline, makes the same noise, lookups and texts."""

import json
import re
from itertools import groupby
from pathlib import Path

import numpy as np
import paceline
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.prompt_lookup import LookupRule, prompt_lookup
from paceline.policies import make_policy
from paceline.runtime.coupled_noise import gumbel
from paceline.sim import Scenario, TrieTables, simulate
from paceline.traces import open_recording
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from ...unit_cost import UnitCost

ROOT = Path(paceline.__file__).parent
PICO = ROOT / "pools" / "pico"


@pytest.fixture(scope="module")
def rebuilt():
    """The names that the page's code defines."""
    page = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        assert "paceline" not in block
        exec(block, names)
    return names


@given(
    seed=st.integers(-(2**70), 2**70),
    request_id=st.text(max_size=8),
    position=st.integers(0, 2**40),
    vocabulary=st.integers(1, 12),
)
def test_noise_is_the_same_to_the_bit(rebuilt, seed, request_id, position, vocabulary):
    ours = gumbel(seed, request_id, position, vocabulary)
    assert rebuilt["noise"](seed, request_id, position, vocabulary) == ours.tolist()


def test_a_longer_vocabulary_begins_as_a_shorter_one(rebuilt):
    assert rebuilt["noise"](1, "r", 5, 99)[:7] == rebuilt["noise"](1, "r", 5, 7)


@given(
    context=st.lists(st.integers(0, 3), min_size=1, max_size=24),
    asked=st.integers(1, 8),
    matches=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    occurrence=st.sampled_from(["first", "last", "longest"]),
)
def test_lookups_are_the_same(rebuilt, context, asked, matches, occurrence):
    min_match, max_match = sorted(matches)
    rule = LookupRule(max_match=max_match, min_match=min_match, occurrence=occurrence)
    theirs = rebuilt["lookup"](context, asked, (), max_match, min_match, occurrence)
    assert theirs == prompt_lookup(context, num_tokens=asked, rule=rule)


def test_every_lookup_of_a_replay_is_foretold(rebuilt):
    trace = open_recording(ROOT / "recordings" / "pico.trace")
    assert trace.meta.ngram is not None
    tables = TrieTables(trace)
    log = simulate(Scenario(tables=tables, cost=UnitCost()), make_policy("ngram:6/target", tables.pool), "p")
    steps = zip(*(log.steps[name].tolist() for name in ("request", "kind", "asked", "drafted", "emitted")), strict=True)
    found = 0
    for index, own in groupby(sorted(steps, key=lambda step: step[0]), key=lambda step: step[0]):
        record = trace.requests[index]
        trunk = record.trie.token[record.trie.trunk[1:]].tolist()
        emitted = 0
        for _, kind, asked, drafted, added in own:
            if kind == 0:
                context = [*record.prompt, *trunk[:emitted]]
                room = min(asked, record.max_new_tokens - emitted)
                assert len(rebuilt["lookup"](context, room, trace.meta.eos_token_ids)) == drafted
                found += drafted > 0
            emitted += added
    assert found > 100


def test_texts_are_those_of_the_recording(rebuilt):
    trace = open_recording(ROOT / "recordings" / "pico-coupled.trace")
    sampling = trace.meta.sampling
    model = AutoModelForCausalLM.from_pretrained(PICO / "target", dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(PICO / "tokenizer.json"))
    lines = (PICO / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = {prompt["id"]: prompt["prompt"] for prompt in map(json.loads, lines)}

    @torch.inference_mode()
    def next_logits(ids):
        return model(torch.tensor([ids])).logits[0, -1].tolist()

    for record in trace.requests[:2]:
        prompt = tokenizer.encode(texts[record.request_id]).ids
        assert list(record.prompt) == prompt
        trunk = record.trie.token[record.trie.trunk[1:]].tolist()[:16]
        answer = rebuilt["written"](
            next_logits, prompt, 16, trace.meta.eos_token_ids, sampling.seed, record.request_id, sampling.temperature
        )
        assert answer == trunk
        assert np.isfinite(rebuilt["noise"](sampling.seed, record.request_id, 0, trace.meta.vocab_size)).all()
