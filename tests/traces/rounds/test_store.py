import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from paceline.base.files import whole_folder
from paceline.traces import TraceFormatError, make_trace, read_trace, write_trace
from paceline.traces.folder import ROUNDS_FILES
from paceline.traces.forms import open_recording
from paceline.traces.rounds.rounds import DrafterInfo, Rounds, RoundsMeta, RoundsRequest
from paceline.traces.rounds.store import read_rounds, write_rounds

from ..tries.test_store import SPEC, assert_equal, cast, content, edit_meta, edit_table, sign, with_null
from .rounds_strategies import assert_same_rounds, bernoulli_trace, rounds_traces


def write(trace, path):
    return write_rounds(iter(trace.requests), lambda: trace.meta, path)


def refusal(path: Path) -> TraceFormatError:
    with pytest.raises(TraceFormatError) as caught:
        read_rounds(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    assert caught.value.__cause__ is None
    return caught.value


def timed_trace():
    made = bernoulli_trace(by_start=True, requests=3, length=20)
    seconds = np.linspace(0.1, 0.2, len(made.requests[1].rounds["d"].start))
    seconds[0] = np.nan
    timed = replace(made.requests[1].rounds["d"], draft_s=seconds)
    return replace(made, requests=(made.requests[0], replace(made.requests[1], rounds={"d": timed}), made.requests[2]))


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "good.trace"
    write(timed_trace(), path)
    return path


@given(trace=rounds_traces())
def test_what_was_written_is_read(trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("round") / "t.trace"
    assert write(trace, path) == trace.meta
    assert_same_rounds(read_rounds(path), trace)
    assert_same_rounds(open_recording(path), trace)


@settings(max_examples=20)
@given(trace=rounds_traces())
def test_reading_and_writing_gives_the_same_bytes(trace, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    write(trace, folder / "one")
    write(read_rounds(folder / "one"), folder / "two")
    assert content(folder / "one") == content(folder / "two")
    assert sorted(content(folder / "one")) == sorted(ROUNDS_FILES)


def test_requests_of_several_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.traces.rounds.store._GROUP", 100)
    trace = bernoulli_trace(by_start=False, requests=9, length=90)
    write(trace, tmp_path / "t.trace")
    assert pq.ParquetFile(tmp_path / "t.trace" / "rounds.parquet").num_row_groups > 2
    assert pq.ParquetFile(tmp_path / "t.trace" / "requests.parquet").num_row_groups > 2
    assert_same_rounds(read_rounds(tmp_path / "t.trace"), trace)


def test_an_identifier_twice_in_two_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.traces.rounds.store._GROUP", 10)
    trace = bernoulli_trace(by_start=False, requests=3)
    with pytest.raises(TraceFormatError, match=r"id: must be unique, got 'q0'"):
        write(replace(trace, requests=(*trace.requests, trace.requests[0])), tmp_path / "t.trace")
    assert not list(tmp_path.iterdir())


def test_requests_are_taken_one_by_one_and_meta_after_the_last(tmp_path):
    trace = bernoulli_trace(by_start=True, requests=3)
    order = []

    def requests():
        for request in trace.requests:
            order.append(request.request_id)
            yield request

    def meta():
        order.append("meta")
        return trace.meta

    write_rounds(requests(), meta, tmp_path / "t.trace")
    assert order == ["q0", "q1", "q2", "meta"]


def test_an_import_that_fails_leaves_nothing(tmp_path):
    trace = bernoulli_trace(by_start=True, requests=3)

    def broken():
        yield trace.requests[0]
        raise KeyError("line 2")

    with pytest.raises(KeyError):
        write_rounds(broken(), lambda: trace.meta, tmp_path / "t.trace")

    def no_meta():
        raise ValueError("no drafter")

    with pytest.raises(ValueError, match="no drafter"):
        write_rounds(iter(trace.requests), no_meta, tmp_path / "t.trace")
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_the_old_recording(stored):
    before = content(stored)
    with pytest.raises(TraceFormatError, match="at least one request"):
        write_rounds(iter(()), lambda: bernoulli_trace(by_start=True).meta, stored)
    assert content(stored) == before
    assert [entry.name for entry in stored.parent.iterdir()] == ["good.trace"]


def test_recordings_of_both_kinds_replace_each_other(tmp_path):
    path = tmp_path / "t.trace"
    tries, rounds = make_trace(SPEC), timed_trace()
    write(rounds, path)
    write_trace(tries, path)
    assert_equal(open_recording(path), tries)
    write(rounds, path)
    assert_same_rounds(open_recording(path), rounds)


@pytest.mark.parametrize("name", ["notes.txt", "nodes.csv"])
def test_what_is_no_recording_is_not_replaced(tmp_path, name):
    (tmp_path / "t.trace").mkdir()
    (tmp_path / "t.trace" / name).write_text("mine")
    with pytest.raises(TraceFormatError, match="must be free, or a recording to replace"):
        write(timed_trace(), tmp_path / "t.trace")


def test_each_reader_names_the_other_kind(stored, tmp_path):
    with pytest.raises(TraceFormatError, match=r"imported recording holds rounds, not contexts: `paceline compare`"):
        read_trace(stored)
    write_trace(make_trace(SPEC), tmp_path / "tries.trace")
    error = refusal(tmp_path / "tries.trace")
    assert (error.field, error.rule, error.value) == ("kind", "must be imported here", "synthetic")


def test_seconds_that_nobody_knows_are_none(stored):
    rounds = [request.rounds["d"] for request in read_rounds(stored).requests]
    assert [one.draft_s is None for one in rounds] == [True, False, True]
    assert all(one.verify_s is None for one in rounds)
    assert np.isnan(rounds[1].draft_s[0])
    assert not np.isnan(rounds[1].draft_s[1:]).any()


@pytest.mark.parametrize("name", ROUNDS_FILES)
def test_a_missing_file_is_named(stored, name):
    (stored / name).unlink()
    error = refusal(stored)
    assert (Path(error.path).name, error.field) == (name, "file")


def test_no_recording_at_all(tmp_path):
    assert refusal(tmp_path / "none.trace").value == "nothing there"
    (tmp_path / "file.trace").write_text("{}")
    assert refusal(tmp_path / "file.trace").value == "a file"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"[1]", b"null", b"[" * 100_000], ids=lambda data: repr(data[:8])
)
def test_meta_that_is_no_json_object(stored, data):
    (stored / "meta.json").write_bytes(data)
    assert Path(refusal(stored).path).name == "meta.json"
    with pytest.raises(TraceFormatError):
        open_recording(stored)


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda meta: meta.update(version=2), "version"),
        (lambda meta: meta.pop("version"), "version"),
        (lambda meta: meta.pop("format"), "format"),
        (lambda meta: meta.update(colour="red"), "colour"),
        (lambda meta: meta.pop("source"), "source"),
        (lambda meta: meta.pop("kind"), "kind"),
        (lambda meta: meta.update(drafters=[]), "drafters"),
        (lambda meta: meta["drafters"][0].update(window=0), "drafters.0.window"),
        (lambda meta: meta["drafters"][0].update(name="a/b"), "drafters.0.name"),
        (lambda meta: meta["drafters"][0].update(name="target"), "content"),
        (lambda meta: meta["drafters"][0].update(window=2), "accepted"),
        (lambda meta: meta.update(drafters=[{"name": "e", "by_start": True}]), "drafters"),
        (lambda meta: meta.pop("sha256"), "sha256"),
        (lambda meta: meta["sha256"].pop("rounds.parquet"), "content"),
        (lambda meta: meta["sha256"].update({"nodes.parquet": "0"}), "content"),
    ],
)
def test_meta_that_breaks_a_rule(stored, edit, field):
    edit_meta(stored, edit)
    assert refusal(stored).field == field


@pytest.mark.parametrize("name", ["requests.parquet", "rounds.parquet"])
@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data + b"\0"],
    ids=["half", "empty", "longer"],
)
def test_damaged_bytes_are_told_by_their_hash(stored, name, damage):
    (stored / name).write_bytes(damage((stored / name).read_bytes()))
    error = refusal(stored)
    assert (Path(error.path).name, error.field) == (name, "sha256")


@pytest.mark.parametrize("name", ["requests.parquet", "rounds.parquet"])
def test_a_signed_file_with_a_flipped_byte_is_sound_or_refused(stored, name):
    """Whatever Parquet makes of it: a sound recording or one line, never another exception."""
    data = (stored / name).read_bytes()
    messages = []
    for place in range(0, len(data), 7):
        (stored / name).write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        sign(stored, name)
        try:
            read_rounds(stored)
        except TraceFormatError as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert not [message for message in messages if "\n" in message]


@pytest.mark.parametrize(
    ("name", "edit", "field", "rule"),
    [
        ("rounds", lambda table: table.drop(["start"]), "start", "must be a column"),
        ("rounds", lambda table: table.drop(["draft_s"]), "draft_s", "must be a column"),
        ("requests", lambda table: table.drop(["methods"]), "methods", "must be a column"),
        ("rounds", lambda table: table.append_column("mood", table["start"]), "mood", "must not be there"),
        ("rounds", lambda table: cast(table, "start", pa.int64()), "start", "must be of type int32"),
        ("rounds", lambda table: cast(table, "draft_s", pa.float32()), "draft_s", "must be of type double"),
        ("requests", lambda table: cast(table, "num_tokens", pa.list_(pa.int64())), "num_tokens", "must be of type"),
        ("rounds", lambda table: with_null(table, "accepted"), "accepted", "must hold no nulls"),
        ("requests", lambda table: with_null(table, "num_tokens"), "num_tokens", "must hold no nulls"),
        ("requests", lambda table: with_null(table, "wall_s"), "wall_s", "must hold no nulls"),
        ("rounds", lambda table: table.slice(1), "num_rounds", "add up to"),
        ("rounds", lambda table: table.append_column("start", table["start"]), "content", ""),
    ],
)
def test_a_signed_file_with_other_columns(stored, name, edit, field, rule):
    edit_table(stored, f"{name}.parquet", edit)
    error = refusal(stored)
    assert error.field == field
    assert rule in error.rule


def test_a_number_that_is_none_is_refused_in_the_file(stored):
    def with_nan(table):
        values = pa.array(np.full(len(table), np.nan))
        return table.set_column(table.schema.get_field_index("draft_s"), "draft_s", values)

    edit_table(stored, "rounds.parquet", with_nan)
    error = refusal(stored)
    assert (error.field, error.rule) == ("draft_s", "must be null where unknown")


def test_lists_of_one_request_must_go_together(stored):
    def shorter(table):
        values = pa.array([[], *table.column("wall_s").to_pylist()[1:]], table.schema.field("wall_s").type)
        return table.set_column(table.schema.get_field_index("wall_s"), "wall_s", values)

    edit_table(stored, "requests.parquet", shorter)
    error = refusal(stored)
    assert (error.field, error.rule) == ("wall_s", "must hold one entry per entry of methods (request 'q0')")


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


def test_a_disk_that_is_full_names_the_recording(tmp_path):
    full = pytest.raises(OSError, match="No space left on device")
    with full as error, whole_folder(tmp_path / "x.trace"):
        raise OSError(errno.ENOSPC, "No space left on device")  # as Arrow does, without a file
    assert error.value.filename == str(tmp_path / "x.trace")
    assert not list(tmp_path.iterdir())


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
