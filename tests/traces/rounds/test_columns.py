from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.rounds.columns import gather, misaligned, request_arrays, request_table, rounds_requests, slices
from paceline.traces.rounds.recording import RoundsRecording

from .rounds_strategies import assert_same_rounds, rounds_traces


@given(recording=rounds_traces(), most_rounds=st.integers(1, 30))
def test_pieces_hold_what_the_whole_holds(recording, most_rounds):
    columns = gather(recording.requests, Path("t.trace"))
    pieces = list(slices(columns, most_rounds))
    assert all(piece.request_id for piece in pieces)
    found = [request for piece in pieces for request in rounds_requests(piece)]
    assert_same_rounds(RoundsRecording(meta=recording.meta, requests=tuple(found)), recording)


@given(recording=rounds_traces())
def test_requests_survive_their_table(recording):
    columns = gather(recording.requests, Path("t.trace"))
    table = request_table(columns)
    assert misaligned(table) is None
    for name, values in request_arrays(table).items():
        kept = getattr(columns, name)
        assert [repr(value) for value in values] == [repr(value) for value in kept], name
