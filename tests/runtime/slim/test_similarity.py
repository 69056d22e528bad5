"""Statistics of similarity, and models of a known similarity to try them on."""

import dataclasses
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.pools.parts import make_submodel
from paceline.runtime.slim import calibrate, measure_distance
from paceline.traces.meta import Sampling
from paceline_laboratory.shared import measure_agreement, perturbed, shared_noise_agreement, with_slims

from ...tiny_models import random_prompts, tiny_pool_of_four

WEIGHTS = st.lists(st.floats(0, 1) | st.just(0.0), min_size=5, max_size=5).filter(lambda weights: sum(weights) > 0.1)


def distribution(weights):
    values = torch.tensor(weights, dtype=torch.float64)
    return values / values.sum()


def by_definition(p, q):
    total = 0.0
    for i in range(len(p)):
        if p[i] > 0 and q[i] > 0:
            total += 1 / sum(max(float(p[j] / p[i]), float(q[j] / q[i])) for j in range(len(p)))
    return total


@given(WEIGHTS, WEIGHTS)
def test_shared_noise_by_its_definition_and_its_bounds(one, other):
    p, q = distribution(one), distribution(other)
    agreement = float(shared_noise_agreement(p[None], q[None])[0])
    tvd = float((p - q).abs().sum() / 2)
    assert agreement == pytest.approx(by_definition(p, q), abs=1e-9)
    assert (1 - tvd) / (1 + tvd) - 1e-9 <= agreement <= 1 - tvd + 1e-9


def test_shared_noise_is_what_sampling_with_it_gives():
    p, q = distribution([0.5, 0.1, 0.2, 0.15, 0.05]), distribution([0.1, 0.3, 0.2, 0.05, 0.35])
    generator = torch.Generator().manual_seed(0)
    exponentials = torch.empty(200_000, 5, dtype=torch.float64).exponential_(generator=generator)
    same = ((p / exponentials).argmax(-1) == (q / exponentials).argmax(-1)).double().mean()
    assert float(shared_noise_agreement(p[None], q[None])[0]) == pytest.approx(float(same), abs=0.005)


@cache
def sampled():
    sampling = Sampling(mode="coupled", temperature=0.8, seed=1)
    return calibrate(tiny_pool_of_four(), random_prompts(4), max_new_tokens=16, sampling=sampling)


def test_agreement_lies_between_its_bounds():
    target = tiny_pool_of_four().target.model
    assert measure_agreement(target, sampled()) == pytest.approx(1.0, abs=1e-6)
    slim = make_submodel(target, (1, 2))
    assert 0.2 < measure_agreement(slim, sampled()) < 1 - measure_distance(slim, sampled()).tvd


def test_more_noise_is_further_away():
    target = tiny_pool_of_four().target.model
    before = {name: weight.clone() for name, weight in target.named_parameters()}
    far = [measure_distance(perturbed(target, noise, seed=0), sampled()).tvd for noise in (0.0, 0.05, 0.2)]
    assert far[0] == pytest.approx(0.0, abs=1e-6)
    assert far[0] < far[1] < far[2]
    assert all(torch.equal(weight, before[name]) for name, weight in target.named_parameters())


def test_noise_is_as_large_as_asked_and_seeded():
    target = tiny_pool_of_four().target.model
    one, again, other = (perturbed(target, 0.1, seed=seed).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    weight = target.lm_head.weight
    assert float((one - weight).std() / weight.std()) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("noise", [-0.1, float("nan")])
def test_noise_below_zero_is_refused(noise):
    with pytest.raises(ValueError, match=f"noise must be >= 0, got {noise}"):
        perturbed(tiny_pool_of_four().target.model, noise, seed=0)


def test_slims_stand_in_order_of_size():
    pool = with_slims(tiny_pool_of_four(), {"a": (0,), "b": (0, 1, 3)})
    names = [member.name for member in pool.members]
    assert names == ["ngram", "draft", "b", "mid", "slim", "a", "target"]
    assert len(tiny_pool_of_four().members) == 5


def test_names_that_are_taken_are_refused():
    with pytest.raises(ValueError, match="name must not be that of a member, got 'mid'"):
        with_slims(tiny_pool_of_four(), {"mid": (0,)})


def test_a_target_without_a_network_has_no_slims():
    pool = tiny_pool_of_four()
    pool = dataclasses.replace(pool, members=pool.members[:1])
    with pytest.raises(ValueError, match="target must be a model with layers, got ngram without any"):
        with_slims(pool, {"a": (0,)})
