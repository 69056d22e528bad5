"""Mixtures of experts: how many experts tokens touch, and what a forward of them costs."""

from itertools import combinations, product
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.traces.errors import Experts
from paceline.traces.meta import ModelInfo
from paceline.traces.shapes import presets
from pydantic import ValidationError

from .shapes import DEVICE, MODEL, seconds

EXPERTS = Experts(number=8, per_token=2, layers=3, parameters=25_000)
MIXTURE = MODEL.model_copy(update={"experts": EXPERTS})


@pytest.mark.parametrize(("number", "per_token", "tokens"), [(4, 1, 3), (4, 2, 2), (5, 2, 3), (3, 3, 2)])
def test_the_mean_over_every_way_to_route(number, per_token, tokens):
    ways = [set().union(*chosen) for chosen in product(combinations(range(number), per_token), repeat=tokens)]
    assert len(ways) == comb(number, per_token) ** tokens
    experts = Experts(number=number, per_token=per_token, layers=1, parameters=1)
    assert experts.touched(tokens) == pytest.approx(sum(map(len, ways)) / len(ways))


@given(st.integers(2, 512), st.data(), st.integers(1, 5000))
def test_more_tokens_touch_more_experts_each_fewer_of_its_own(number, data, tokens):
    experts = Experts(number=number, per_token=data.draw(st.integers(1, number)), layers=1, parameters=1)
    assert experts.touched(1) == pytest.approx(experts.per_token)
    less, here, more = (experts.touched(tokens + by) for by in (-1, 0, 1))
    assert less <= here <= more <= number
    assert more - here <= (here - less) * (1 + 1e-9) + 1e-9


def test_a_forward_by_hand():
    """A million weights, 3 x 8 x 25,000 of them experts: a token goes through 400,000 and a quarter of the rest."""
    cost = RooflineCost(DEVICE, (MIXTURE,))
    assert MIXTURE.active_parameters == 400_000 + 3 * 2 * 25_000
    launches = 3 * 2e-6
    # Five tokens touch 8 (1 - 0.75^5) = 6.1 experts of each layer; memory waits: 4 bytes a weight.
    read = 400_000 + 3 * 25_000 * 8 * (1 - 0.75**5)
    assert seconds(cost, 5, held=10) == pytest.approx((4 * read + 400 * 15) / 1e11 + launches)
    # A thousand touch all of them, and arithmetic counts the two that each goes through.
    arithmetic = 2 * 550_000 * 1000 + 1200 * 1000 * 500.5
    assert seconds(cost, 1000) == pytest.approx(arithmetic / 1e12 + launches)
    assert cost.notes()[0].startswith("m: experts drawn uniformly and independently")


@given(st.integers(1, 3000), st.integers(0, 10**6), st.sampled_from([1, 4]))
def test_where_every_token_goes_through_all_experts_a_mixture_is_dense(new, held, split):
    every = MODEL.model_copy(update={"experts": EXPERTS.model_copy(update={"per_token": 8})})
    dense, mixed = (RooflineCost(DEVICE, (one,), tensor_parallel=split) for one in (MODEL, every))
    assert seconds(mixed, new, held=held) == seconds(dense, new, held=held)
    assert seconds(RooflineCost(DEVICE, (MIXTURE,), tensor_parallel=split), new, held=held) <= seconds(
        dense, new, held=held
    )


def test_memory_holds_all_experts():
    whole = presets()["mixtral-8x7b"].info("target")
    with pytest.raises(ValueError, match=r"the weights of target take 93.4 GB, memory holds 80.0 GB"):
        RooflineCost(device_sheet()["h100"], (whole,))
    assert RooflineCost(device_sheet()["h100"], (whole,), tensor_parallel=2).notes()


def test_verification_of_a_mixture_is_not_flat():
    """What docs/costs.md says: times the experts, and times the seconds, of five tokens over one, at batch 1."""
    h200 = device_sheet()["h200"]
    for name, experts, more in (("mixtral-8x7b", 3.05, 2.69), ("qwen-3-30b-a3b", 4.41, 2.36), ("llama-3.1-8b", 1, 1)):
        shape = presets()[name].info("m")
        cost = RooflineCost(h200, (shape,))
        touched = 1.0 if shape.experts is None else shape.experts.touched(5) / shape.experts.touched(1)
        assert touched == pytest.approx(experts, abs=0.01)
        assert seconds(cost, 5, held=1000) / seconds(cost, 1, held=1000) == pytest.approx(more, abs=0.01)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"number": 1}, "experts.number\n.*greater than or equal to 2"),
        ({"per_token": 9}, "per_token must be at most number, 8, got 9"),
        ({"layers": 4}, "experts.layers must be at most layers, 3, got 4"),
        ({"parameters": 50_000}, "parameters must be more than those of all experts, 1200000, got 1000000"),
    ],
)
def test_experts_that_cannot_be(change, told):
    experts = EXPERTS.model_dump() | change
    with pytest.raises(ValidationError, match=told):
        ModelInfo.model_validate({**MODEL.model_dump(), "experts": experts})
