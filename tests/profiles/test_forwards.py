"""Between measured shapes seconds are interpolated, and beyond them the smooth model answers and says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.profiles.forwards import ProfiledForwards
from paceline.profiles.meta import InDecoding

from .profiles import CONTEXTS, NEW_TOKENS, ROWS, made_profile, seconds_of

PROFILE = made_profile()


def forwards(in_decoding=None):
    return ProfiledForwards(PROFILE.of("draft"), PROFILE.meta.members[0].smooth, in_decoding)


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


@pytest.mark.parametrize(
    ("rows", "new_tokens", "context"), [(5, 5, 0), (1, 10, 0), (1, 1, 201), (3, 30, 0), (3, 3, 3 * 201)]
)
def test_beyond_the_shapes_the_smooth_model_answers(rows, new_tokens, context):
    found = forwards()
    assert found.measured(rows, new_tokens, context) is None
    assert found.seconds(rows, new_tokens, context) == 7.0
    assert found.beyond


def test_in_decoding_forwards_take_longer_by_rows_and_after_others():
    found = forwards(InDecoding(rows=(1, 3), again=(1.0, 2.0), after_others=(1.5, 2.0)))
    assert found.seconds(1, 1, 0) == pytest.approx(seconds_of(1, 1, 0))
    assert found.seconds(2, 2, 0) == pytest.approx(1.5 * seconds_of(2, 1, 0))
    assert found.seconds(9, 9, 0) == 14.0
    assert found.measured(3, 3, 0) == pytest.approx(seconds_of(3, 1, 0))
    assert [found.longer_after_others(rows) for rows in (1, 3, 9)] == pytest.approx([0.5, 0.0, 0.0])
    assert forwards().longer_after_others(1) == 0.0


def test_without_a_smooth_model_there_is_no_answer():
    with pytest.raises(ValueError, match="no shape near 9 rows of 9 tokens after 0 was measured"):
        ProfiledForwards(PROFILE.of("draft"), None).seconds(9, 9, 0)
