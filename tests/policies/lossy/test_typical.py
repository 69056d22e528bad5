"""Typical acceptance keeps what lies above its threshold and no other token, on models and in replay."""

import pytest
import torch
from paceline.decoding.rules import Typical
from paceline.policies import Draft, Verify, make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.sim.recorded import recorded_pool
from paceline.traces.meta import Sampling

from ...sim.serving.engine.served_runs import pico
from ...tiny_models import random_prompts, tiny_pool_of_four
from ..lossless.recordings import flat, replayed
from .watching import POOL, blocks_of, watched

PROMPTS = random_prompts(12, seed=5)


def written(text):
    """(prompt ids, answer ids) of every prompt, by the tiny models."""
    pool = tiny_pool_of_four()
    policy = make_policy(text, loaded_pool(pool))
    outputs, _ = decode(pool, policy, PROMPTS, sampling=Sampling(mode="greedy"), max_new_tokens=24, name="typical")
    prompts = {prompt.request_id: pool.tokenizer.encode(prompt.text).ids for prompt in PROMPTS}
    return [(prompts[output.request_id], list(output.tokens)) for output in outputs]


@pytest.mark.parametrize(("eps", "delta"), [(0.09, 0.3), (0.02, 1.0), (0.5, 0.7)])
def test_no_token_of_the_text_is_below_the_threshold(eps, delta):
    """The threshold worked out anew from the target's logits: min(eps, delta exp(-H)), or the target's own token."""
    target = tiny_pool_of_four().members[-1].model
    kept = others = 0
    for prompt, answer in written(f"typical,tokens=3,eps={eps},delta={delta}"):
        with torch.inference_mode():
            logits = target(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        log_probs = torch.log_softmax(logits.double(), dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        threshold = torch.minimum(torch.full_like(entropy, eps), delta * torch.exp(-entropy))
        for index, token in enumerate(answer):
            own = int(log_probs[index].argmax()) == token
            assert own or log_probs[index, token].exp() > threshold[index] * (1 - 1e-6)
            kept += own
            others += not own
    assert kept > 30
    assert others > 3, "it is lossy"


def test_every_draft_is_judged_by_the_rule():
    watch, _ = watched(make_policy("typical", POOL))
    for draft, end in blocks_of(watch):
        assert draft.step == Draft("draft", 5)
        assert end.step == Verify("target", Typical(0.09, 0.3))


def test_the_lower_the_threshold_the_more_is_kept():
    tables, cost = pico(), flat(ngram=1e-6, draft=0.1, mid=0.3, slim=0.5, target=1.0)
    texts = ["draft:5/target", "typical,eps=0.5,delta=0.9", "typical", "typical,eps=0.01,delta=0.1"]
    kept = []
    for text in texts:
        steps = replayed(tables, cost, make_policy(text, recorded_pool(tables.trace))).steps
        kept.append(steps["accepted"].sum() / steps["judged"].sum())
    assert kept == sorted(kept)
    assert kept[0] < 0.9 * kept[1]
