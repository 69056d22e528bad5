"""Imported recordings: every rule, broken on the way out and in a signed file; what is counted; the disk."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from paceline.benchmarks.shared.engine_logs import sequential
from paceline.traces import TraceFormatError, make_trace, read_trace, write_trace
from paceline.traces.opening import open_recording
from paceline.traces.rounds.check import acceptance_lengths
from paceline.traces.rounds.columns import gather, misaligned, request_arrays, request_table
from paceline.traces.rounds.on_disk import read_rounds, write_rounds
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import DrafterInfo, Rounds, RoundsMeta, RoundsRequest

from ..making import (
    ROUNDS_META,
    SPEC,
    a_request,
    a_round,
    assert_equal,
    content,
    edit_meta,
    edit_table,
    ints,
    refusal,
    timed_trace,
    with_cell,
    with_column,
    write,
)
from .rounds_strategies import assert_same_rounds, bernoulli_trace, rounds_traces


def write_requests(path, *requests):
    return write_rounds(iter(requests), lambda: ROUNDS_META, path)


BREACHES = [
    ({"request_id": ""}, "id", "must not be empty"),
    ({"prompt_tokens": -1, "prompt": ()}, "prompt_tokens", "must be integers in"),
    ({"prompt_tokens": 3}, "prompt", "must hold prompt_tokens tokens or none"),
    ({"prompt": (5, -6)}, "prompt", "must be integers in"),
    ({"prompt": (5, 2**31)}, "prompt", "must be integers in"),
    ({"prompt": (5, True)}, "prompt", "must be integers in"),
    ({"output": tuple(range(8))}, "output", "must hold 9 tokens"),
    ({"num_tokens": {}, "wall_s": {}, "prefill_s": {}}, "num_tokens", "must name at least one method"),
    ({"num_tokens": {"": 0, "d": 8}}, "num_tokens", "must be >= 1"),
    ({"num_tokens": {"": 9.0, "d": 8}}, "num_tokens", "must be integers in"),
    ({"num_tokens": {"": 9, "d": 10**30}}, "num_tokens", "must be integers in"),
    ({"num_tokens": {"": 9, "d": 8, "f": 1}}, "drafters", "must be a drafter of meta.json"),
    ({"rounds": {"f": a_round()}}, "drafters", "must be a drafter of meta.json"),
    ({"rounds": {"": a_round()}}, "drafters", "must have names"),
    ({"wall_s": {"e": 1.0}}, "wall_s", "must name methods of num_tokens"),
    ({"wall_s": {"d": 0.0}, "prefill_s": {}}, "wall_s", "must be > 0 and finite"),
    ({"wall_s": {"d": float("nan")}, "prefill_s": {}}, "wall_s", "must be > 0 and finite"),
    ({"wall_s": {"d": float("inf")}, "prefill_s": {}}, "wall_s", "must be > 0 and finite"),
    ({"prefill_s": {"d": 0.6}}, "prefill_s of 'd'", "must be at most wall_s"),
]


@pytest.mark.parametrize(("changes", "field", "rule"), BREACHES)
def test_a_request_that_breaks_a_rule(tmp_path, changes, field, rule):
    with pytest.raises(TraceFormatError) as caught:
        write_requests(tmp_path / "t.trace", a_request(request_id="first"), a_request(**changes))
    assert caught.value.field == field
    assert rule in caught.value.rule
    assert field == "id" or "(request 'a'" in str(caught.value)
    assert not list(tmp_path.iterdir())


ROUND_BREACHES = [
    ({"start": ints(0, 3, 8)}, "start", "must lie in the output, 0 to num_tokens - 1", 8),
    ({"start": ints(-1, 3, 7)}, "start", "must lie in the output", -1),
    ({"start": ints(0, 3, 3)}, "start", "must ascend strictly", 3),
    ({"start": ints(3, 0, 7)}, "start", "must ascend strictly", 0),
    ({"accepted": ints(2, -1, 0)}, "accepted", "must be >= 0", -1),
    ({"accepted": ints(2, 3, 2)}, "accepted", "must end within the output", 2),
    ({"drafted": ints(1, -1, 4)}, "drafted", "must be >= accepted, or -1", 1),
    ({"drafted": ints(4, -3, 4)}, "drafted", "must be >= accepted, or -1 or -2 for unknown", -3),
    ({"drafted": ints(4, 5, 4)}, "drafted", "must be at most the window 4 of drafter 'd'", 5),
    ({"start": ints(0, 1, 7), "accepted": ints(2, 5, 0)}, "accepted", "must be at most the window 4", 5),
    ({"draft_s": np.array([0.1, np.inf, 0.1])}, "draft_s", "must be > 0 and finite", np.inf),
    ({"draft_s": np.array([0.1, 0.0, 0.1])}, "draft_s", "must be > 0 and finite", 0.0),
    ({"verify_s": np.array([0.1, -1.0, np.nan])}, "verify_s", "must be > 0 and finite", -1.0),
]


@pytest.mark.parametrize(("changes", "field", "rule", "value"), ROUND_BREACHES)
def test_a_round_that_breaks_a_rule(tmp_path, changes, field, rule, value):
    others = {"e": a_round(), "d": a_round(**changes)}
    with pytest.raises(TraceFormatError) as caught:
        write_requests(tmp_path / "t.trace", a_request(request_id="first"), a_request(rounds=others))
    error = caught.value
    assert (error.field, error.value) == (field, value)
    assert rule in error.rule
    assert "request 'a'" in error.rule
    assert "window" in rule or "drafter 'd', round " in error.rule


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"accepted": np.array([2, 3, 0])}, "int64 of shape (3,)"),
        ({"accepted": ints(2, 3)}, "int32 of shape (2,)"),
        ({"drafted": ints(4, -1, 4)[:, None]}, "int32 of shape (3, 1)"),
        ({"draft_s": np.zeros(3, np.float32)}, "float32 of shape (3,)"),
        ({"verify_s": np.ones(2)}, "float64 of shape (2,)"),
    ],
)
def test_arrays_of_another_kind(tmp_path, changes, found):
    with pytest.raises(TraceFormatError) as caught:
        write_requests(tmp_path / "t.trace", a_request(rounds={"d": a_round(**changes)}))
    assert caught.value.value == found
    assert caught.value.field == next(iter(changes))


@pytest.mark.parametrize(
    ("file", "column", "values", "field", "rule"),
    [
        ("requests", "output", [[-1] * 9], "output", "must be >= 0"),
        ("requests", "methods", [["d", "d"]], "methods", "must be unique"),
        ("requests", "prefill_s", [[None, float("inf")]], "prefill_s of 'd'", "must be > 0 and finite"),
        ("requests", "drafters", [[""]], "drafters", "must have names"),
        ("requests", "num_rounds", [[-3]], "num_rounds", "must be >= 0"),
        ("requests", "num_rounds", [[2]], "num_rounds", "add up to the 3 rows"),
        ("rounds", "accepted", [2, 2**31 - 1, 0], "accepted", "must end within the output"),
        ("rounds", "drafted", [1, -1, 4], "drafted", "must be >= accepted"),
    ],
)
def test_a_signed_file_is_checked_as_a_writer_is(tmp_path, file, column, values, field, rule):
    write_requests(tmp_path / "t.trace", a_request())
    edit_table(tmp_path / "t.trace", f"{file}.parquet", lambda table: with_column(table, column, values))
    error = refusal(tmp_path / "t.trace", read_rounds)
    assert error.field == field
    assert rule in error.rule


def test_a_window_counts_where_it_is_known_and_a_request_is_there_once(tmp_path):
    """The same rounds, longer than the window of `d`, are sound for `e`, whose window nobody knows."""
    long = a_round(start=ints(0, 1, 7), accepted=ints(2, 5, 0), drafted=ints(7, 7, -1))
    write_requests(tmp_path / "e.trace", a_request(rounds={"e": long}))
    with pytest.raises(TraceFormatError, match="must name at least one request"):
        write_requests(tmp_path / "t.trace")
    with pytest.raises(TraceFormatError, match="id: must be unique, got 'a'"):
        write_requests(tmp_path / "t.trace", a_request(), a_request())


def test_the_first_of_several_breaches_is_named(tmp_path):
    bad, worse = (
        a_request(request_id=name, rounds={"d": a_round(accepted=accepted)})
        for name, accepted in (("b", ints(-1, 3, -2)), ("c", ints(-5, 0, 0)))
    )
    with pytest.raises(TraceFormatError, match=r"accepted: must be >= 0 \(request 'b', drafter 'd', round 0\), got -1"):
        write_requests(tmp_path / "t.trace", a_request(), bad, worse)


# What a recording holds, counted.


def test_counts_and_rates_of_a_recording_made_by_hand():
    tokens_only = a_round(start=ints(0, 2, 6), accepted=ints(4, 1, 3), drafted=ints(4, 4, 4))
    other = a_request(request_id="b", tag="u", rounds={}, prompt=(), prompt_tokens=0, num_tokens={"e": 5}, output=())
    requests = (a_request(rounds={"d": a_round(), "e": tokens_only}), replace(other, wall_s={"e": 2.0}, prefill_s={}))
    summary = RoundsRecording(meta=ROUNDS_META, requests=requests).summary()
    total = summary.total
    assert (total.num_requests, total.num_prompt_tokens, total.num_output_tokens) == (2, 2, 14)
    assert list(total.methods) == ["d", "e", ""]
    d, e, alone = total.methods.values()
    # d: 3 + 4 + 1 tokens of 3 rounds, none of which kept its whole draft; they start at 3 of 8 positions.
    assert (d.num_requests, d.num_rounds, d.tokens_per_round, d.censored_share) == (1, 3, 8 / 3, 0.0)
    assert (d.known_share, d.token_s) == (3 / 8, 0.5 / 8)
    # e: 5 + 2 tokens, and 4 of which the end of the text cut the last; one round of three was kept whole, and the
    # rounds speak of positions 0 to 3 and 6 to 8.
    assert (e.num_requests, e.num_rounds, e.tokens_per_round, e.censored_share) == (2, 3, 11 / 3, 1 / 3)
    assert (e.known_share, e.token_s) == (7 / 9, 2.0 / 5)
    assert (alone.num_requests, alone.num_rounds, alone.tokens_per_round, alone.token_s) == (1, 0, None, 1.0 / 9)
    assert list(summary.by_tag) == ["t", "u"]
    assert summary.by_tag["u"].methods["d"].tokens_per_round is None
    assert (summary.num_texts, summary.size_bytes) == (1, None)


def test_a_drafter_stopped_where_it_drafted_less_than_its_window_before_the_end():
    rounds = a_round(start=ints(0, 2, 4, 5, 6), accepted=ints(0, 2, 1, 0, 2), drafted=ints(0, 3, 2, -1, 2))
    assert rounds.short(3, 8).tolist() == [True, False, True, False, False]
    assert rounds.short(None, 8).tolist() == [True, False, False, False, False]


def test_seconds_of_rounds_are_averaged_where_they_are_known():
    timed = a_round(draft_s=np.array([0.1, np.nan, 0.3]))
    summary = RoundsRecording(meta=ROUNDS_META, requests=(a_request(rounds={"d": timed}),)).summary()
    assert summary.total.methods["d"].draft_s == pytest.approx(0.2)
    assert summary.total.methods["d"].verify_s is None


@given(trace=rounds_traces())
def test_it_is_plain_json_with_shares_that_are_some(trace):
    summary = trace.summary()
    assert json.loads(json.dumps(summary.to_json(), allow_nan=False))["meta"]["kind"] == "imported"
    for group in [summary.total, *summary.by_tag.values()]:
        for method in group.methods.values():
            assert method.tokens_per_round is None or method.tokens_per_round >= 1
            assert all(share is None or 0 <= share <= 1 for share in (method.censored_share, method.known_share))
    assert sum(group.num_requests for group in summary.by_tag.values()) == summary.total.num_requests


@given(trace=rounds_traces(max_requests=2))
def test_positions_that_rounds_speak_of_are_counted_once(trace):
    for drafter in trace.meta.drafters:
        spoken, positions = 0, 0
        for request in trace.requests:
            if drafter.name not in request.rounds:
                continue
            rounds, length = request.rounds[drafter.name], request.length(drafter.name)
            known = set()
            columns = (rounds.start, rounds.accepted, rounds.censored(drafter.window), rounds.where_placed)
            for start, kept, whole, placed in zip(*columns, strict=True):
                if placed:
                    continue
                known.update([start] if drafter.by_start else range(start, min(start + kept + (not whole), length)))
            spoken, positions = spoken + len(known), positions + length
        share = trace.summary().total.methods[drafter.name].known_share
        assert share is None or share == spoken / positions


def test_the_rounds_of_one_log_emit_its_text():
    trace = bernoulli_trace(by_start=True)
    for request in trace.requests:
        length = request.length("d")
        assert acceptance_lengths(request.rounds["d"], length).sum() in (length, length + 1)
    all_kept = sequential(20, 6, lambda start: np.ones(min(6, 20 - start), bool))
    assert acceptance_lengths(all_kept, 20).tolist() == [7, 7, 7]


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
    monkeypatch.setattr("paceline.traces.rounds.on_disk._GROUP", group)
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
        ("rounds", lambda table: with_column(table, "draft_s", np.full(len(table), np.nan)), "draft_s", "must be null"),
        ("requests", lambda table: with_cell(table, "wall_s", 0, []), "wall_s", "must hold one entry per entry of"),
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


def test_recordings_made_before_rounds_were_placed_or_requests_had_sessions_still_open(stored):
    edit_table(stored, "rounds.parquet", lambda table: table.drop_columns(["placed"]))
    edit_table(stored, "requests.parquet", lambda table: table.drop_columns(["session"]))
    edit_meta(stored, lambda meta: [drafter.pop("prefilled") for drafter in meta["drafters"]])
    old = read_rounds(stored)
    rounds = [request.rounds["d"] for request in old.requests]
    assert [one.draft_s is None for one in rounds] == [True, False, True]  # where nobody knows
    assert all(one.verify_s is one.placed is None for one in rounds)
    assert_same_rounds(old, timed_trace())
    assert [drafter.prefilled for drafter in old.meta.drafters] == [False]
    assert {request.session for request in old.requests} == {""}
