"""One number is rounded exactly as an array of them is."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS, CodeGrid

GRIDS = st.sampled_from([LOG_PROBS, ENTROPIES, UNITS])


@st.composite
def values(draw: st.DrawFn, grid: CodeGrid) -> float:
    """Anything, and numbers on, between and just beyond the codes, as float32 or float64."""
    code = draw(st.integers(-3, grid.high + 3) | st.integers(-2, 2).map(lambda past: grid.high + past))
    near = (code + draw(st.sampled_from([-0.5, -0.25, 0.0, 0.25, 0.5]))) * grid.step * grid.sign
    value = draw(
        st.just(near) | st.floats(-20, 20) | st.floats(-1e300, 1e300) | st.sampled_from([math.inf, -math.inf, math.nan])
    )
    return draw(st.sampled_from([value, float(np.float32(min(max(value, -3e38), 3e38)))]))


def outcome(rounded):
    try:
        return math.copysign(1.0, found := rounded()), found
    except ValueError as error:
        return str(error)


@given(st.data(), GRIDS)
def test_nearest_is_round(data, grid):
    value = data.draw(values(grid))
    assert outcome(lambda: grid.nearest(value)) == outcome(lambda: float(grid.round(np.array([value]))[0]))


@pytest.mark.parametrize("grid", [LOG_PROBS, ENTROPIES, UNITS])
def test_every_code_stays(grid):
    codes = np.arange(0, grid.high + 1, dtype=np.uint16)
    held = grid.decode(codes)
    assert [grid.nearest(value) for value in held.tolist()] == held.tolist()
