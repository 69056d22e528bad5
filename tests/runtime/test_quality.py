"""The quality of texts on real models: against forwards without any cache, and against what a recording says."""

import json
from dataclasses import replace

import pytest
import torch
from paceline.policies import Commit, Draft, Policy, Ratio, Verify
from paceline.reports import summarise_run
from paceline.reports.quality import quality_of
from paceline.runs.log import QUALITY_FIELDS, with_quality
from paceline.runtime.decode import Alone, text_qualities
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.prompts import is_right
from paceline.runtime.recording.recorder import record
from paceline.sim.contexts import TrieTables
from paceline.sim.recorded import recorded_pool
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.columns import LOG_PROBS
from paceline.traces.meta import Closure

from ..tiny_models import random_prompts, tiny_pool_of_four
from ..unit_cost import UnitCost
from .offline import COUPLED, GREEDY, REJECTION, chosen, decoded, logits_after

NUM_TOKENS = 6


class Hasty(Policy):
    """Drafts two, checks them by a lenient rule, and commits every third draft unchecked."""

    def __init__(self, pool):
        self._target = pool.target
        self._drafts = {}

    def decide(self, seen):
        count = self._drafts.get(seen.request_id, 0)
        if seen.num_pending:
            return Commit(seen.num_pending) if count % 3 == 0 else Verify(self._target, Ratio(0.5))
        if seen.room < 1:
            return Verify(self._target)
        self._drafts[seen.request_id] = count + 1
        return Draft("draft", 2)


def ran(sampling, prompts):
    pool = tiny_pool_of_four()
    outputs, log = decoded(pool, Hasty(loaded_pool(pool)), prompts, sampling=sampling, num_tokens=NUM_TOKENS, batch=2)
    found = text_qualities(pool, prompts, outputs, Alone(sampling=sampling, max_new_tokens=NUM_TOKENS, batch=2))
    return pool, outputs, log, found


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=str)
def test_the_target_is_asked_place_by_place_and_a_recording_says_the_same(tmp_path, sampling):
    """Every context within the answer's length is recorded, so that nothing is modelled."""
    prompts = random_prompts(5, seed=3)
    pool, outputs, log, found = ran(sampling, prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        context, divergences, log_prob = pool.encode(prompt.text), 0, 0.0
        num_prompt, model = len(context), pool.target.model
        for token in output.tokens:
            scores = logits_after(model, context) / (sampling.temperature or 1.0)
            log_prob += float(torch.log_softmax(scores, dim=-1)[token])
            divergences += chosen(model, context, num_prompt, prompt.request_id, sampling) != token
            context.append(token)
        quality = found[prompt.request_id]
        assert quality.divergences == divergences
        assert quality.log_prob == pytest.approx(log_prob, abs=LOG_PROBS.step * len(output.tokens))
        assert quality.seen_tokens == quality.scored_tokens == len(output.tokens)
        assert (quality.right, quality.trunk_right) == (-1, -1)
    closure = Closure(kind="full", reach=NUM_TOKENS, run=NUM_TOKENS)
    trace = record(
        pool, prompts, sampling=sampling, closure=closure, max_new_tokens=NUM_TOKENS, out=tmp_path / "full.trace"
    )
    tokens = {}
    scenario = Scenario(tables=TrieTables(trace), cost=UnitCost(), batch=2)
    replayed = simulate(scenario, Hasty(recorded_pool(trace)), "p", outputs=tokens)
    assert tokens == {output.request_id: list(output.tokens) for output in outputs}
    measured = with_quality(log, found)
    order = [replayed.requests["request_id"].tolist().index(name) for name in measured.requests["request_id"].tolist()]
    for name in ("divergent_tokens", *QUALITY_FIELDS):
        assert measured.requests[name] == pytest.approx(replayed.requests[name][order], abs=NUM_TOKENS * LOG_PROBS.step)
    assert measured.requests["divergences"].sum() > 0


def test_texts_drawn_by_rejection_sampling_have_no_places_in_common():
    _, _, log, found = ran(REJECTION, random_prompts(3, seed=2))
    assert {(row.divergences, row.same_tokens, row.same_start) for row in found.values()} == {(-1, -1, -1)}
    quality = quality_of(with_quality(log, found))
    assert quality.lossy
    assert quality.num_divergences is quality.text_agreement is quality.prefix_agreement is None
    assert quality.log_prob_per_token < 0 > quality.own_log_prob_per_token


def test_answers_are_scored_for_both_texts_and_failed_ones_are_left_out():
    first, *others = random_prompts(3, seed=2)
    pool, outputs, _, _ = ran(GREEDY, [first, *others])
    asked = [replace(first, tag="edit", answer=outputs[0].text.strip() or "x"), *others]
    _, outputs, log, found = ran(GREEDY, asked)
    right = int(is_right("edit", asked[0].answer, outputs[0].text))
    assert found[first.request_id].right == right
    assert found[first.request_id].trunk_right in {0, 1}
    measured = with_quality(log, found)
    quality = quality_of(measured)
    assert (quality.answers_right, quality.answers_total) == (right, 1)
    assert quality_of(log) is None
    assert log.meta["lossy_steps"] is True
    json.dumps(log.meta, allow_nan=False)
    summary = summarise_run(measured)
    assert summary.quality.requests == 3
    assert summary.divergent_tokens == measured.requests["divergent_tokens"].sum() > 0
    failed = [outputs[0], *(replace(output, error="broken") for output in outputs[1:])]
    alone = Alone(sampling=GREEDY, max_new_tokens=NUM_TOKENS)
    assert set(text_qualities(pool, asked, failed, alone)) == {first.request_id}
    assert text_qualities(pool, asked, failed[1:], alone) == {}
