"""Imported recordings on the disk: written in one go as they come, read whole, and their columns."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.traces import TraceFormatError, make_trace, read_trace, write_trace
from paceline.traces.forms import open_recording
from paceline.traces.rounds.columns import gather, misaligned, request_arrays, request_table, rounds_requests, slices
from paceline.traces.rounds.rounds import DrafterInfo, Rounds, RoundsMeta, RoundsRequest
from paceline.traces.rounds.store import read_rounds, write_rounds

from ..making import SPEC, assert_equal, content, edit_meta, edit_table, refusal, timed_trace, with_column, write
from .rounds_strategies import assert_same_rounds, bernoulli_trace, rounds_traces


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "good.trace"
    write(timed_trace(), path)
    return path


@settings(max_examples=30)
@given(trace=rounds_traces())
def test_what_was_written_is_read_and_written_again_as_the_same_bytes(trace, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    assert write(trace, folder / "one") == trace.meta
    assert_same_rounds(open_recording(folder / "one"), trace)
    write(read_rounds(folder / "one"), folder / "two")
    assert content(folder / "one") == content(folder / "two")


@given(recording=rounds_traces(), most_rounds=st.integers(1, 30))
def test_pieces_hold_what_the_whole_holds(recording, most_rounds):
    columns = gather(recording.requests, Path("t.trace"))
    pieces = list(slices(columns, most_rounds))
    assert all(piece.request_id for piece in pieces)
    found = [request for piece in pieces for request in rounds_requests(piece)]
    assert_same_rounds(replace(recording, requests=tuple(found)), recording)


@given(recording=rounds_traces())
def test_requests_survive_their_table(recording):
    columns = gather(recording.requests, Path("t.trace"))
    table = request_table(columns)
    assert misaligned(table) is None
    for name, values in request_arrays(table).items():
        kept = getattr(columns, name)
        assert [repr(value) for value in values] == [repr(value) for value in kept], name


@pytest.mark.parametrize("group", [100, 10])
def test_requests_of_several_row_groups(tmp_path, monkeypatch, group):
    monkeypatch.setattr("paceline.traces.rounds.store._GROUP", group)
    trace = bernoulli_trace(by_start=False, requests=9, length=90)
    write(trace, tmp_path / "t.trace")
    for name in ("rounds", "requests"):
        assert pq.ParquetFile(tmp_path / "t.trace" / f"{name}.parquet").num_row_groups > 2
    assert_same_rounds(read_rounds(tmp_path / "t.trace"), trace)
    with pytest.raises(TraceFormatError, match=r"id: must be unique, got 'q0'"):
        write(replace(trace, requests=(*trace.requests, trace.requests[0])), tmp_path / "u.trace")
    assert not (tmp_path / "u.trace").exists()


def test_requests_are_taken_one_by_one_and_meta_after_the_last(tmp_path):
    trace, order = bernoulli_trace(by_start=True, requests=3), []
    requests = (order.append(request.request_id) or request for request in trace.requests)
    write_rounds(requests, lambda: order.append("meta") or trace.meta, tmp_path / "t.trace")
    assert order == ["q0", "q1", "q2", "meta"]


def test_an_import_that_fails_leaves_what_was_there(stored, tmp_path):
    trace, before = bernoulli_trace(by_start=True, requests=3), content(stored)

    def broken():
        yield trace.requests[0]
        raise KeyError("line 2")

    def no_meta():
        raise ValueError("no drafter")

    for path in (stored, tmp_path / "new.trace"):
        with pytest.raises(KeyError):
            write_rounds(broken(), lambda: trace.meta, path)
        with pytest.raises(ValueError, match="no drafter"):
            write_rounds(iter(trace.requests), no_meta, path)
        with pytest.raises(TraceFormatError, match="at least one request"):
            write_rounds(iter(()), lambda: trace.meta, path)
    assert content(stored) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["good.trace"]


def test_recordings_of_both_kinds_replace_each_other(tmp_path):
    path = tmp_path / "t.trace"
    tries, rounds = make_trace(SPEC), timed_trace()
    write(rounds, path)
    write_trace(tries, path)
    assert_equal(open_recording(path), tries)
    write(rounds, path)
    assert_same_rounds(open_recording(path), rounds)


def test_each_reader_names_the_other_kind(stored, tmp_path):
    with pytest.raises(TraceFormatError, match=r"imported recording holds rounds, not contexts: `paceline compare`"):
        read_trace(stored)
    write_trace(make_trace(SPEC), tmp_path / "tries.trace")
    error = refusal(tmp_path / "tries.trace", read_rounds)
    assert (error.field, error.rule, error.value) == ("kind", "must be imported here", "synthetic")


def test_seconds_that_nobody_knows_are_none(stored):
    rounds = [request.rounds["d"] for request in read_rounds(stored).requests]
    assert [one.draft_s is None for one in rounds] == [True, False, True]
    assert all(one.verify_s is None for one in rounds)


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda meta: meta.pop("source"), "source"),
        (lambda meta: meta.update(drafters=[]), "drafters"),
        (lambda meta: meta["drafters"][0].update(window=0), "drafters.0.window"),
        (lambda meta: meta["drafters"][0].update(name="a/b"), "drafters.0.name"),
        (lambda meta: meta["drafters"][0].update(name="target"), "content"),
        (lambda meta: meta["drafters"][0].update(window=2), "accepted"),
        (lambda meta: meta.update(drafters=[{"name": "e", "by_start": True}]), "drafters"),
    ],
)
def test_meta_that_breaks_a_rule(stored, edit, field):
    edit_meta(stored, edit)
    assert refusal(stored, read_rounds).field == field


@pytest.mark.parametrize(
    ("file", "edit", "field", "rule"),
    [
        ("rounds", lambda table: table.slice(1), "num_rounds", "add up to"),
        (
            "rounds",
            lambda table: with_column(table, "draft_s", np.full(len(table), np.nan)),
            "draft_s",
            "must be null where unknown",
        ),
        (
            "requests",
            lambda table: with_column(table, "wall_s", [[], *table.column("wall_s").to_pylist()[1:]]),
            "wall_s",
            "must hold one entry per entry of methods (request 'q0')",
        ),
    ],
)
def test_tables_that_do_not_go_together(stored, file, edit, field, rule):
    edit_table(stored, f"{file}.parquet", edit)
    error = refusal(stored, read_rounds)
    assert error.field == field
    assert rule in error.rule


def test_text_that_utf8_cannot_hold(tmp_path):
    made = bernoulli_trace(by_start=True, requests=1)
    odd = replace(made, requests=(replace(made.requests[0], request_id="a\ud800"),))
    with pytest.raises(TraceFormatError, match="UTF-8"):
        write(odd, tmp_path / "t.trace")
    assert not list(tmp_path.iterdir())


def test_a_drafter_that_had_no_time_to_draft(tmp_path):
    empty = Rounds(start=np.empty(0, np.int32), accepted=np.empty(0, np.int32), drafted=np.empty(0, np.int32))
    request = RoundsRequest(request_id="a", tag="", num_tokens={"d": 1}, rounds={"d": empty})
    meta = RoundsMeta(name="short", source="test", drafters=(DrafterInfo(name="d", by_start=True),))
    write_rounds([request], lambda: meta, tmp_path / "t.trace")
    assert len(read_rounds(tmp_path / "t.trace").requests[0].rounds["d"].start) == 0


def test_recordings_made_before_rounds_were_placed_still_open(stored):
    edit_table(stored, "rounds.parquet", lambda table: table.drop_columns(["placed"]))
    edit_meta(stored, lambda meta: [drafter.pop("prefilled") for drafter in meta["drafters"]])
    old = read_rounds(stored)
    assert_same_rounds(old, timed_trace())
    assert [drafter.prefilled for drafter in old.meta.drafters] == [False]
    assert all(rounds.placed is None for request in old.requests for rounds in request.rounds.values())


def test_marks_of_placed_rounds_are_kept(tmp_path):
    made = bernoulli_trace(by_start=True, requests=2, length=20)
    rounds = made.requests[0].rounds["d"]
    marks = np.arange(len(rounds.start)) % 2 == 1
    one = replace(made.requests[0], rounds={"d": replace(rounds, placed=marks)})
    write(replace(made, requests=(one, made.requests[1])), tmp_path / "x.trace")
    first, second = (request.rounds["d"] for request in read_rounds(tmp_path / "x.trace").requests)
    assert first.placed.tolist() == marks.tolist()
    assert second.placed is None
