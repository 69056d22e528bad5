"""A forward among others costs what an even one does, its padding, its place in the cache and its reload."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.profile import (
    BatchShape,
    ForwardsInDecoding,
    InDecoding,
    Longer,
    ProfiledForwards,
    Reload,
    UnevenRows,
)
from pydantic import ValidationError

from .profiles import NO_RELOAD, made_profile, seconds_of

PROFILE = made_profile()
SHAPE = BatchShape(2, 6, 3, 53)
RELOAD = Reload(new_tokens=(1, 5), away_s=(1.0, 3.0), longer_s=((0.1, 0.3), (0.5, 0.7)))


def forwards(*, uneven=None, reload=NO_RELOAD, in_decoding=None):
    alone = ProfiledForwards(PROFILE.of("draft"), PROFILE.meta.members[0].smooth)
    return ForwardsInDecoding(alone, uneven or UnevenRows(), reload, in_decoding or InDecoding())


@given(rows=st.integers(1, 4), each=st.integers(1, 9), held=st.integers(0, 100))
def test_even_rows_cost_what_was_measured(rows, each, held):
    shape = BatchShape(rows, rows * each, each, held + each)
    assert shape.padding == 0
    assert forwards().seconds(shape, first=True) == pytest.approx(seconds_of(rows, each, held))


def test_padding_and_rows_apart_cost_extra():
    uneven = UnevenRows(per_padding_s=1.0, per_padding_pair_s=0.1, apart_s=100.0, per_gathered_slot_s=10.0)
    assert uneven.seconds(BatchShape(2, 6, 3, 50)) == 0
    assert uneven.seconds(BatchShape(2, 4, 3, 50)) == pytest.approx(2 * (1.0 + 0.1 * 50))
    assert uneven.seconds(BatchShape(2, 6, 3, 50, apart=True)) == 100.0 + 10.0 * 2 * 50
    shape = BatchShape(2, 4, 3, 50)
    assert forwards(uneven=uneven).seconds(shape, first=True) == pytest.approx(
        seconds_of(2, 2, 48) + uneven.seconds(shape)
    )


@pytest.mark.parametrize(
    ("new_tokens", "away_s", "longer_s"),
    [
        (1, 0.0, 0.0),
        (1, 0.5, 0.05),
        (1, 1.0, 0.1),
        (1, 2.0, 0.2),
        (1, float("inf"), 0.3),
        (3, 1.0, 0.3),
        (5, 9.0, 0.7),
        (99, 3.0, 0.7),
    ],
)
def test_reloads_are_linear_between_what_was_measured_and_constant_beyond(new_tokens, away_s, longer_s):
    assert forwards(reload=RELOAD).reload_s(new_tokens, away_s) == pytest.approx(longer_s)


def test_parts_of_the_weights_are_away_for_as_long_as_they_are():
    found = forwards(reload=RELOAD)
    assert found.reloads_s(1, [(0.25, 1.0), (0.75, 3.0)]) == pytest.approx(0.25 * 0.1 + 0.75 * 0.3)


def test_what_was_seen_in_decoding_is_added_and_never_more_than_half_taken_off():
    first = Longer(new_tokens=(2, 6, 10), longer_s=(1e-4, 5e-4, -1e-4))
    found, shape = forwards(in_decoding=InDecoding(first=first, later=Longer(new_tokens=(1,), longer_s=(-1.0,)))), SHAPE
    alone_s = seconds_of(2, 3, 50)
    assert found.seconds(shape, first=True) == pytest.approx(alone_s + 5e-4)
    assert found.seconds(shape, first=False) == pytest.approx(alone_s / 2)
    prompt = BatchShape(1, 40, 40, 40)
    assert found.seconds(prompt, first=True) == forwards().seconds(prompt, first=True)
    assert [first.seconds(BatchShape(1, count, count, 50)) for count in (1, 2, 4, 8, 10, 20)] == pytest.approx(
        [1e-4, 1e-4, 3e-4, 2e-4, -1e-4, -1e-4]
    )


@pytest.mark.parametrize(
    "changes",
    [{"new_tokens": (1, 1), "longer_s": (0, 0)}, {"new_tokens": (1,)}, {"new_tokens": (1,), "longer_s": (inf,)}],
)
def test_what_cannot_have_been_seen(changes):
    with pytest.raises(ValidationError):
        Longer(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"longer_s": ((0.1, 0.3),)},
        {"longer_s": ((0.1,), (0.5,))},
        {"away_s": (3.0, 1.0)},
        {"new_tokens": (0, 5)},
        {"longer_s": ((0.1, -0.3), (0.5, 0.7))},
    ],
)
def test_a_reload_that_cannot_be(changes):
    with pytest.raises(ValidationError):
        Reload(**(RELOAD.model_dump() | changes))
