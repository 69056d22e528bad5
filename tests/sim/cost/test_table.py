import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import CostRangeError
from paceline.sim.cost.files import TableCost
from paceline.traces import CostTable

from .shapes import seconds

TABLE = CostTable(new_tokens=(1, 2, 8, 16), seconds=(1.0, 1.5, 3.0, 2.0))
RISING = CostTable(new_tokens=(2, 4, 8), seconds=(1.0, 2.0, 3.0))


@pytest.mark.parametrize(("new", "wanted"), [(1, 1.0), (2, 1.5), (5, 2.25), (8, 3.0), (12, 2.5), (16, 2.0)])
def test_a_table_is_interpolated(new, wanted):
    cost = TableCost("cpu", {"m": TABLE})
    assert seconds(cost, new) == wanted
    assert seconds(cost, new, rows=7, held=10**6) == wanted  # a table knows new tokens only


@given(new=st.integers(1, 16))
def test_a_table_stays_between_its_points(new):
    cost = TableCost("cpu", {"m": TABLE})
    below = max(index for index, point in enumerate(TABLE.new_tokens) if point <= new)
    ends = TABLE.seconds[below : below + 2]
    assert min(ends) <= seconds(cost, new) <= max(ends)


@pytest.mark.parametrize("new", [0, 17, 10**9])
def test_a_table_is_not_extrapolated(new):
    cost = TableCost("cpu", {"m": TABLE})
    with pytest.raises(CostRangeError, match=f"cost cpu: m was measured for 1 to 16 new tokens.*asked for {new}"):
        seconds(cost, new)


def test_a_table_for_every_model():
    with pytest.raises(CostRangeError, match="cost cpu: no table for model 'other'; it has m"):
        seconds(TableCost("cpu", {"m": TABLE}), 1, model="other")


@pytest.mark.parametrize(
    ("table", "new", "wanted"),
    [
        (RISING, 1, 1.0),  # fewer tokens than measured cost what the fewest did
        (RISING, 16, 3.0 + 8 * 0.25),  # the last segment goes on
        (TABLE, 100, 2.0),  # but never down
        (CostTable(new_tokens=(4,), seconds=(1.5,)), 1, 1.5),
        (CostTable(new_tokens=(4,), seconds=(1.5,)), 99, 1.5),
    ],
)
def test_a_table_that_is_told_to_goes_on_and_says_so(table, new, wanted):
    cost = TableCost("cpu", {"m": table, "other": table}, extrapolate=True)
    assert seconds(cost, table.new_tokens[-1]) == table.seconds[-1]
    before = cost.notes()
    assert not any("beyond" in note for note in before)
    for _ in range(2):
        assert seconds(cost, new) == wanted
    assert cost.notes() == ("seconds beyond what was measured: m", *before)


@given(new=st.integers(0, 10**6), more=st.integers(1, 10**6))
def test_beyond_the_last_point_seconds_never_fall(new, more):
    cost = TableCost("cpu", {"m": RISING, "n": TABLE}, extrapolate=True)
    for model in ("m", "n"):
        assert seconds(cost, 16 + new, model=model) <= seconds(cost, 16 + new + more, model=model)


def test_a_table_says_that_it_knows_no_context():
    assert TableCost("cpu", {"m": TABLE}).notes() == ("measured by new tokens only: a longer context costs no more",)
