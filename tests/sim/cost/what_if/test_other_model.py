import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import CostModel
from paceline.sim.cost.make import make_cost
from paceline.sim.cost.roofline import RooflineCost
from paceline.sim.cost.what_if import Price, PricedAsCost

from ..shapes import DEVICE, MODEL, RECORDING, seconds

SPLIT = RooflineCost(DEVICE, (MODEL,), tensor_parallel=2)
ALONE = RooflineCost(DEVICE, (MODEL,))
TABLE = make_cost("cpu", RECORDING)


def priced() -> PricedAsCost:
    return PricedAsCost("what if", {"draft": Price(cost=ALONE, model="m"), "target": Price(cost=SPLIT, model="m")})


@given(new=st.integers(1, 500), rows=st.integers(1, 8), held=st.integers(0, 5000))
def test_every_member_costs_what_its_other_model_costs(new, rows, held):
    cost = priced()
    assert seconds(cost, new, model="draft", rows=rows, held=held) == seconds(ALONE, new, rows=rows, held=held)
    assert seconds(cost, new, model="target", rows=rows, held=held) == seconds(SPLIT, new, rows=rows, held=held)


def test_it_says_what_is_priced_as_what_and_what_the_costs_say_once():
    cost = PricedAsCost("mixed", {name: Price(cost=TABLE, model="draft") for name in ("draft", "target")})
    said = [f"{name} is priced as draft on cpu" for name in ("draft", "target")]
    assert cost.notes() == (*said, *TABLE.notes())
    assert cost.name == "mixed"


def test_it_is_a_cost_model():
    cost: CostModel = priced()
    assert cost.lookup_s == TABLE.lookup_s


def test_a_member_without_a_price_is_refused():
    with pytest.raises(ValueError, match=r"^cost what if: no price for model 'mid'; it has draft, target$"):
        seconds(priced(), 1, model="mid")
    with pytest.raises(ValueError, match=r"^cost none: prices must hold at least one member, got {}$"):
        PricedAsCost("none", {})
