"""Other orders of a recording."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from paceline.base.files import shipped
from paceline.traces.contexts.store import read_trace
from paceline_laboratory.arena.play import PARTS, reordered

RECORDING = read_trace(shipped("recordings", "pico.trace"))
IDS = [request.request_id for request in RECORDING.requests]


def ids(recording):
    return [request.request_id for request in recording.requests]


@given(st.integers(1, 10_000))
def test_another_order_has_the_same_requests_in_each_quarter(seed):
    found = ids(reordered(RECORDING, seed))
    size = len(IDS) // PARTS
    for part in range(PARTS):
        assert sorted(found[part * size : (part + 1) * size]) == sorted(IDS[part * size : (part + 1) * size])


def test_seed_0_is_the_recorded_order_and_others_are_not():
    assert ids(reordered(RECORDING, 0)) == IDS
    assert ids(reordered(RECORDING, 1)) != IDS
    assert ids(reordered(RECORDING, 1)) == ids(reordered(RECORDING, 1)) != ids(reordered(RECORDING, 2))


def test_requests_keep_what_they_are():
    other = reordered(RECORDING, 3)
    assert replace(other, requests=RECORDING.requests) == RECORDING
