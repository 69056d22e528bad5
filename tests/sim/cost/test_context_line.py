"""Seconds of forwards lie on the lines that a cost says, and a line is the same wherever it is asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import CostModel, CostRangeError
from paceline.sim.cost.files import CostGrid, CostLine, FileCost, TableCost
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.sim.cost.what_if import Price, PricedAsCost, scaled
from paceline.sim.serving.charges import MOST_ERROR, ForwardLines, in_whole_ps
from paceline.sim.serving.cluster import PlacedCost
from paceline.sim.serving.running import to_ps, to_s
from paceline.traces.meta import CostTable
from paceline.traces.shapes import shape_called

GRID = CostGrid(new_tokens=(1, 64), context_tokens=(10, 500, 9000), seconds=((1e-4, 3e-4, 2e-4), (4e-4, 5e-4, 9e-4)))
TABLE = CostTable(new_tokens=(1, 64), seconds=(1e-4, 4e-4))
LINE = CostLine(intercept_s=1e-3, per_new_token_s=1.234e-6, per_kv_token_s=1e-9 / 3)


def roofline(name="llama-3.1-8b", **options):
    return RooflineCost(device_sheet()["h100"], (shape_called(name, "m", None),), **options)


def costs():
    placed = PlacedCost({"other": FileCost("f", {"other": TABLE}), "m": roofline()}, "m")
    return (
        roofline(),
        roofline("llama-3.1-70b", tensor_parallel=4),
        roofline("qwen-3-30b-a3b"),
        FileCost("f", {"m": GRID}, extrapolate=True),
        FileCost("f", {"m": CostGrid(new_tokens=(1,), context_tokens=(7,), seconds=((1e-4,),))}, extrapolate=True),
        FileCost("f", {"m": LINE}),
        TableCost("t", {"m": TABLE}, extrapolate=True),
        scaled(roofline(), {"m": 1.7}, target="m"),
        placed,
        PricedAsCost("p", {"m": Price(cost=FileCost("f", {"big": GRID}, extrapolate=True), model="big")}),
    )


shapes = st.tuples(st.sampled_from(range(len(costs()))), st.integers(1, 64), st.integers(0, 4000))
contexts = st.one_of(
    st.integers(0, 20_000), st.integers(0, 10**7), st.sampled_from([9, 10, 499, 500, 8999, 9000, 9001])
)


@given(shapes, contexts, st.data())
def test_forwards_lie_on_the_lines(shape, held, data):
    which, num_rows, more = shape
    cost = costs()[which]
    asked = {"num_rows": num_rows, "new_tokens": num_rows + more}
    line = cost.context_line("m", context_tokens=held, **asked)
    assert line.start <= held < line.end
    other = data.draw(st.integers(line.start, int(min(line.end, line.start + 10**6)) - 1))
    assert cost.context_line("m", context_tokens=other, **asked) == line
    expected = cost.forward_s("m", context_tokens=other, **asked)
    assert line.start_s + line.slope_s * (other - line.start) == pytest.approx(expected, rel=1e-12)


@given(shapes, contexts, st.data())
def test_whole_picoseconds_are_near_and_follow_from_the_shape(shape, held, data):
    which, num_rows, more = shape
    cost = costs()[which]
    asked = num_rows, num_rows + more
    line = ForwardLines(cost).line("m", *asked, held)
    assert line.start <= held < line.end
    other = data.draw(st.integers(line.start, int(min(line.end, line.start + 10**6)) - 1))
    ps = line.ps(other)
    lines = ForwardLines(cost)
    lines.line("m", *asked, data.draw(contexts))
    assert lines.line("m", *asked, other) == line
    seconds = in_whole_ps(cost).forward_s("m", num_rows=asked[0], new_tokens=asked[1], context_tokens=other)
    assert to_ps(seconds) == ps
    assert seconds == to_s(ps)
    exact_ps = to_ps(cost.forward_s("m", num_rows=asked[0], new_tokens=asked[1], context_tokens=other))
    assert abs(ps - exact_ps) <= 2 + 2 * MOST_ERROR * exact_ps


def test_a_grid_refuses_lines_beyond_its_range_and_tells_when_it_went_beyond():
    asked = {"num_rows": 1, "new_tokens": 1}
    strict = FileCost("f", {"m": GRID})
    assert strict.context_line("m", context_tokens=9000, **asked).end == 9001
    for held in (9, 9001):
        with pytest.raises(CostRangeError, match="tokens held"):
            strict.context_line("m", context_tokens=held, **asked)
    beyond = FileCost("f", {"m": GRID}, extrapolate=True)
    beyond.context_line("m", context_tokens=9000, **asked)
    assert not beyond.notes()
    beyond.context_line("m", context_tokens=9001, **asked)
    assert beyond.notes()


class Measured(CostModel):
    """A cost that says nothing of lines."""

    name = "measured"
    lookup_s = 0.0

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        return 1e-3


def test_who_has_no_lines_says_so_by_name():
    cost = Measured()
    words = "cost measured has no lines by the tokens held"
    assert cost.unlined() == words
    assert scaled(cost, {"m": 2.0}, target="m").unlined() == words
    assert PlacedCost({"d": roofline(), "m": cost}, "m").unlined() == words
    assert PricedAsCost("p", {"m": Price(cost=cost, model="m")}).unlined() == words
    assert in_whole_ps(cost) is cost
    assert all(not lined.unlined() for lined in costs())
