import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.make import make_cost
from paceline.sim.cost.measured import TimedCost
from paceline.sim.cost.what_if import scaled

from ..shapes import RECORDING, seconds
from ..timed_recordings import recording_of, request_of, rounds_of


@given(factor=st.floats(1e-3, 1e3), new=st.integers(1, 8))
def test_one_member_is_scaled_and_no_other(factor, new):
    plain = make_cost("cpu", RECORDING)
    cost = make_cost("cpu", RECORDING, scale={"draft": factor})
    assert seconds(cost, new, model="draft") == seconds(plain, new, model="draft") * factor
    assert seconds(cost, new, model="target") == seconds(plain, new, model="target")
    assert cost.lookup_s == plain.lookup_s
    assert cost.notes() == plain.notes()
    assert not cost.knows_rounds


def test_a_scaled_cost_says_so():
    assert make_cost("h100", RECORDING, scale={"draft": 0.5, "target": 2.0}).name == "h100, draft x0.5, target x2"
    assert scaled(make_cost("h100", RECORDING), {}, target="target").name == "h100"


def test_recorded_rounds_are_scaled_by_part():
    rounds = rounds_of([2, 3, 0], draft_s=[1.0, 2.0, 3.0], verify_s=[10.0, 20.0, 30.0])
    cost = TimedCost(recording_of(request_of("a", {"eagle": rounds}, prefill_s={"eagle": 4.0})))
    faster = scaled(cost, {"eagle": 0.5, "target": 3.0}, target="target")
    assert faster.knows_rounds
    assert faster.name == "timed, eagle x0.5, target x3"
    assert faster.round_s("a", 3, "eagle") == (1.0, 60.0)
    assert faster.round_s("a", 4, "eagle") is None
    assert faster.prefill_s("a", "eagle") == 12.0
    assert seconds(faster, 1, model="eagle") == pytest.approx(0.5 * 6.0 / 12)
    assert seconds(faster, 5, model="target") == 3.0 * 20.0
    assert faster.lookup_s == cost.lookup_s
    assert faster.notes() == cost.notes()
