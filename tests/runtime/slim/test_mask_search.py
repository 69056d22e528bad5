"""Masks, the search among them, and the distances it minimises."""

import dataclasses
import re
import sys
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import install_hint
from paceline.runtime import slim as timing
from paceline.runtime.pools.members import describe_model
from paceline.runtime.pools.parts import make_submodel
from paceline.runtime.slim import (
    Budget,
    Distance,
    SlimFound,
    best_trial,
    calibrate,
    find_slims,
    mark_dominated,
    mask_of,
    measure_distance,
    nearest_unseen,
    num_skipped,
    search_masks,
    skipped_of,
    slim_name,
)
from paceline.traces.meta import CostTable, Sampling
from transformers import GPT2Config, GPT2LMHeadModel

from ...tiny_models import EOS, VOCABULARY, random_prompts, tiny_pool_of_four
from ..offline import trunk

PROMPTS = random_prompts(5)
TOKENS = 12
GOOD = (1, 3, 4, 8)


@pytest.fixture(scope="module")
def calibration():
    return calibrate(tiny_pool_of_four(), PROMPTS, max_new_tokens=TOKENS)


def target():
    return tiny_pool_of_four().target.model


# -- masks


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.data())
def test_every_point_is_a_mask(keys, data):
    skipped = data.draw(st.integers(1, len(keys) - 1))
    mask = mask_of(keys, skipped)
    assert len(set(mask)) == skipped
    assert list(mask) == sorted(mask)
    kept = set(range(len(keys))) - set(mask)
    assert min(keys[layer] for layer in mask) >= max(keys[layer] for layer in kept)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9, unique=True), st.data())
def test_the_nearest_unseen_mask_is_one_exchange_away(keys, data):
    skipped = data.draw(st.integers(1, len(keys) - 1))
    mask = mask_of(keys, skipped)
    neighbours = [other for other in combinations(range(len(keys)), skipped) if len({*other} - {*mask}) == 1]
    seen = {mask, *data.draw(st.lists(st.sampled_from(neighbours)))}
    found = nearest_unseen(keys, mask, seen)
    if set(neighbours) <= seen:
        assert found is None
        return
    exchanged, other = found
    assert other in neighbours
    assert other not in seen
    assert mask_of(exchanged, skipped) == other
    assert sorted(exchanged) == sorted(keys)


def test_shares_become_numbers_of_layers():
    assert skipped_of([0.45, 0.2, 0.9], 11) == {"slim45": 5, "slim20": 2, "slim90": 10}
    assert slim_name(0.29) == "slim29"
    assert slim_name(0.125) == "slim12.5"


# -- the search


class Landscape:
    """Distances that grow with every layer that differs from the best mask; counts what is asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, mask):
        self.asked.append(mask)
        wrong = sum(1 + layer / 10 for layer in set(mask) ^ set(GOOD))
        return Distance(tvd=wrong / 20, disagreement=0.5)


def searched(**budget):
    landscape = Landscape()
    trials = search_masks(landscape, 11, len(GOOD), Budget(**budget))
    assert [trial.skip_layers for trial in trials] == landscape.asked
    return trials


def test_few_masks_are_all_tried():
    landscape = Landscape()
    trials = search_masks(landscape, 5, 2, Budget(trials=10, random_trials=1, seed=0))
    assert landscape.asked == list(combinations(range(5), 2))
    assert {trial.how for trial in trials} == {"exhaustive"}


@pytest.mark.parametrize("seed", range(2))
def test_no_mask_is_tried_twice_and_the_best_is_found_in_a_quarter_of_them(seed):
    trials = searched(trials=80, random_trials=20, seed=seed)
    assert len({trial.skip_layers for trial in trials}) == len(trials) == 80
    assert [trial.how for trial in trials] == ["random"] * 20 + ["bayesian"] * 60
    assert best_trial(trials).skip_layers == GOOD


def test_a_search_is_reproducible():
    first = searched(trials=14, random_trials=10, seed=3)
    assert first == searched(trials=14, random_trials=10, seed=3)
    assert first != searched(trials=14, random_trials=10, seed=4)


def test_almost_all_masks_can_be_tried():
    landscape = Landscape()
    search_masks(landscape, 5, 2, Budget(trials=9, random_trials=2, seed=0))
    assert len(set(landscape.asked)) == 9


def test_random_search_needs_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert {trial.how for trial in searched(trials=7, random_trials=7, seed=0)} == {"random"}


def test_bayesian_search_says_what_to_install_before_any_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(install_hint("search"))):
        find_slims(tiny_pool_of_four(), (), [0.5], Budget(trials=5, random_trials=1, seed=0), max_new_tokens=TOKENS)


# -- distances


def test_texts_are_what_the_target_writes(calibration):
    pool = tiny_pool_of_four()
    assert [list(text.tokens) for text in calibration.texts] == [
        trunk(pool, prompt, num_tokens=TOKENS) for prompt in PROMPTS
    ]
    assert calibration.num_tokens == sum(len(text.tokens) for text in calibration.texts)
    for text in calibration.texts:
        assert text.target_probs.argmax(-1).tolist() == list(text.tokens)
        assert text.tokens.index(EOS) == len(text.tokens) - 1 if EOS in text.tokens else len(text.tokens) == TOKENS


def test_the_target_is_at_no_distance_from_itself(calibration):
    assert measure_distance(target(), calibration) == Distance(tvd=0.0, disagreement=0.0)


def test_a_distance_is_the_mean_over_all_tokens(calibration):
    """Token by token, each from its whole context."""
    slim = make_submodel(target(), (1, 2))
    apart, unequal = [], []
    for text in calibration.texts:
        for place in range(len(text.tokens)):
            context = torch.tensor([[*text.prompt, *text.tokens[:place]]])
            mine, theirs = (model(context, use_cache=False).logits[0, -1].softmax(-1) for model in (slim, target()))
            apart.append(float((mine - theirs).clamp(min=0).sum()))
            unequal.append(bool(mine.argmax() != theirs.argmax()))
    found = measure_distance(slim, calibration)
    assert found.tvd == pytest.approx(sum(apart) / len(apart), abs=1e-5)
    assert found.disagreement == sum(unequal) / len(unequal)
    assert 0 < found.tvd < 1
    assert 0 < found.disagreement < 1


def test_distances_are_taken_at_the_temperature_of_the_text():
    sampling = Sampling(mode="coupled", temperature=0.5, seed=2)
    cold = calibrate(tiny_pool_of_four(), PROMPTS[:2], max_new_tokens=4, sampling=sampling)
    text = cold.texts[0]
    logits = target()(torch.tensor([text.prompt]), use_cache=False).logits[0, -1]
    torch.testing.assert_close(text.target_probs[0], (logits / 0.5).softmax(-1))


def test_broken_logits_are_as_far_as_can_be(calibration):
    slim = make_submodel(target(), (1, 2))
    slim.model.norm = torch.nn.Identity()
    slim.model.embed_tokens = torch.nn.Embedding.from_pretrained(torch.full((VOCABULARY, 32), float("nan")))
    assert measure_distance(slim, calibration) == Distance(tvd=1.0, disagreement=1.0)


# -- the whole search


@pytest.fixture(scope="module")
def frontier():
    pool = tiny_pool_of_four()
    budget = Budget(trials=6, random_trials=2, seed=0)
    return find_slims(pool, PROMPTS, [0.25, 0.5], budget, baselines={"mid": (1, 2)}, max_new_tokens=TOKENS)


def test_the_best_mask_of_each_share_is_found(frontier, calibration):
    for found, skipped in zip(frontier.found, (1, 2), strict=True):
        best = min(
            combinations(range(4), skipped),
            key=lambda mask: measure_distance(make_submodel(target(), mask), calibration).tvd,
        )
        assert found.skip_layers == best
        assert found.how == "exhaustive"
    assert [found.name for found in frontier.found] == ["slim25", "slim50"]
    assert [found.share for found in frontier.found] == [0.25, 0.5]
    assert frontier.num_trials == 4 + 6
    assert frontier.num_tokens == calibration.num_tokens


def test_rows_say_what_they_cost_and_what_was_there_before(frontier, calibration):
    (mid,) = frontier.baselines
    distance = measure_distance(make_submodel(target(), (1, 2)), calibration)
    assert (mid.tvd, mid.disagreement, mid.how) == (distance.tvd, distance.disagreement, "pool")
    assert mid.seconds == frontier.found[1].seconds  # measured once for each number of layers
    assert mid.num_parameters == tiny_pool_of_four().member("mid").num_parameters
    for row in (*frontier.found, mid):
        assert row.seconds > 0
        assert row.seconds_share == row.seconds / frontier.target_s


def test_a_busy_spell_does_not_count(monkeypatch):
    spells = iter([(0.9, 0.1), (0.4, 0.7), *[(0.8, 0.8)] * (timing.SPELLS - 2)])

    def measured(pool, *, new_tokens, repeats):
        seconds = zip((member.name for member in pool.members), next(spells), strict=True)
        return {name: CostTable(new_tokens=new_tokens, seconds=(taken,)) for name, taken in seconds}

    monkeypatch.setattr(timing, "measure_costs", measured)
    assert timing.verify_seconds(tiny_pool_of_four(), [(1,)]) == {1: 0.4, 0: 0.1}


def row(seconds, tvd, disagreement):
    same = {"name": "s", "share": 0.5, "skip_layers": (1,), "num_parameters": 1, "how": "pool"}
    return SlimFound(tvd=tvd, disagreement=disagreement, seconds=seconds, seconds_share=seconds, **same)


def test_a_row_is_dominated_by_one_that_is_nowhere_worse():
    rows = [row(1, 0.5, 0.5), row(2, 0.4, 0.4), row(2, 0.4, 0.5), row(3, 0.4, 0.3), row(3, 0.5, 0.4), row(1, 0.5, 0.5)]
    assert [each.dominated for each in mark_dominated(rows)] == [False, False, True, False, True, False]


def target_only(model):
    return dataclasses.replace(tiny_pool_of_four(), members=(describe_model("target", "model", model, None),))


def without_layers_to_leave_out():
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=3, n_head=4, eos_token_id=EOS)
    return target_only(GPT2LMHeadModel(config).eval())


def found_in(pool, share):
    return find_slims(pool, PROMPTS, [share], Budget(trials=2, random_trials=2, seed=0), max_new_tokens=2)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: num_skipped(0.0, 11), r"share must be in \(0, 1\), got 0"),
        (lambda: num_skipped(1.0, 11), r"share must be in \(0, 1\), got 1"),
        (lambda: num_skipped(-0.5, 11), r"share must be in \(0, 1\), got -0.5"),
        (lambda: num_skipped(float("nan"), 11), r"share must be in \(0, 1\), got nan"),
        (lambda: num_skipped(0.04, 11), "at least one of 11 layers and keep one, got 0.04, which rounds to 0"),
        (lambda: num_skipped(0.96, 11), "at least one of 11 layers and keep one, got 0.96, which rounds to 11"),
        (lambda: skipped_of([0.45, 0.46], 11), r"number of layers than slim45 \(5 of 11\), got 0.46"),
        (lambda: Budget(trials=0, random_trials=1, seed=0), "trials must be >= 1, got 0"),
        (lambda: Budget(trials=5, random_trials=0, seed=0), r"random_trials must be 1 to trials \(5\), got 0"),
        (lambda: Budget(trials=5, random_trials=6, seed=0), r"random_trials must be 1 to trials \(5\), got 6"),
        (lambda: Budget(trials=5, random_trials=1, seed=-1), "seed must be >= 0, got -1"),
        (lambda: calibrate(tiny_pool_of_four(), (), max_new_tokens=9), "`prompts` must hold at least one, got none"),
        (lambda: found_in(without_layers_to_leave_out(), 0.5), r"target target: a submodel needs layers under model"),
        (lambda: found_in(target_only(make_submodel(target(), (1, 2, 3))), 0.45), "one of 1 layers and keep one"),
    ],
)
def test_what_cannot_be_searched_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call()
