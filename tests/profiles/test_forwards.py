"""Between measured shapes seconds are interpolated, and beyond them the smooth model answers and says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.profile import ProfiledForwards

from .profiles import CONTEXTS, NEW_TOKENS, ROWS, made_profile, seconds_of

PROFILE = made_profile()


def forwards():
    return ProfiledForwards(PROFILE.of("draft"), PROFILE.meta.members[0].smooth)


@given(
    rows=st.integers(1, ROWS[-1]),
    each=st.integers(1, NEW_TOKENS[-1]),
    context=st.integers(0, CONTEXTS[-1]),
)
def test_between_shapes_it_is_linear(rows, each, context):
    found = forwards()
    seconds = found.seconds(rows, rows * each, rows * context)
    assert seconds == pytest.approx(seconds_of(rows, each, context))
    assert not found.beyond


def test_fewer_rows_than_were_measured_are_beyond_too():
    found = ProfiledForwards([shape for shape in PROFILE.of("draft") if shape.rows == 4], None)
    assert found.measured(1, 3, 50) is None
    assert found.measured(4, 12, 200) == pytest.approx(seconds_of(4, 3, 50))


@pytest.mark.parametrize(
    ("rows", "new_tokens", "context"), [(5, 5, 0), (1, 10, 0), (1, 1, 201), (3, 30, 0), (3, 3, 3 * 201)]
)
def test_beyond_the_shapes_the_smooth_model_answers(rows, new_tokens, context):
    found = forwards()
    assert found.measured(rows, new_tokens, context) is None
    assert found.seconds(rows, new_tokens, context) == 7.0
    assert found.beyond


def test_without_a_smooth_model_there_is_no_answer():
    with pytest.raises(ValueError, match="no shape near 9 rows of 9 tokens after 0 was measured"):
        ProfiledForwards(PROFILE.of("draft"), None).seconds(9, 9, 0)
