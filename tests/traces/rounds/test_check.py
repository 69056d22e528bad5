"""Every rule of an imported recording, broken as it is written or in a signed file; and what it holds, counted."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from paceline.traces import TraceFormatError
from paceline.traces.importers import read_recording
from paceline.traces.rounds.check import acceptance_lengths
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.store import read_rounds, write_rounds

from ...data_folder import data_folder
from ..making import ROUNDS_META, a_request, a_round, edit_table, ints, refusal, with_column
from .rounds_strategies import bernoulli_trace, rounds_traces, sequential


def write(path, *requests):
    return write_rounds(iter(requests), lambda: ROUNDS_META, path)


def test_the_request_made_by_hand_is_sound(tmp_path):
    write(tmp_path / "t.trace", a_request())


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
        write(tmp_path / "t.trace", a_request(request_id="first"), a_request(**changes))
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
        write(tmp_path / "t.trace", a_request(request_id="first"), a_request(rounds=others))
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
        write(tmp_path / "t.trace", a_request(rounds={"d": a_round(**changes)}))
    assert caught.value.value == found
    assert caught.value.field == next(iter(changes))


def test_a_window_counts_where_it_is_known(tmp_path):
    """The same rounds, longer than the window of `d`, are sound for `e`, whose window nobody knows."""
    long = a_round(start=ints(0, 1, 7), accepted=ints(2, 5, 0), drafted=ints(7, 7, -1))
    write(tmp_path / "t.trace", a_request(rounds={"e": long}))


@pytest.mark.parametrize(
    ("file", "column", "values", "field", "rule"),
    [
        ("requests", "id", [""], "id", "must not be empty"),
        ("requests", "prompt_tokens", [-1], "prompt_tokens", "must be >= 0"),
        ("requests", "prompt_tokens", [7], "prompt", "must hold prompt_tokens tokens"),
        ("requests", "prompt", [[5, -6]], "prompt", "must be >= 0"),
        ("requests", "output", [[1] * 8], "output", "must hold 9 tokens"),
        ("requests", "output", [[-1] * 9], "output", "must be >= 0"),
        ("requests", "methods", [["d", "d"]], "methods", "must be unique"),
        ("requests", "methods", [["d", "f"]], "drafters", "must be a drafter"),
        ("requests", "num_tokens", [[9, 0]], "num_tokens", "must be >= 1"),
        ("requests", "wall_s", [[-1.0, 0.5]], "wall_s of ''", "must be > 0 and finite"),
        ("requests", "prefill_s", [[None, float("inf")]], "prefill_s of 'd'", "must be > 0 and finite"),
        ("requests", "drafters", [[""]], "drafters", "must have names"),
        ("requests", "num_rounds", [[-3]], "num_rounds", "must be >= 0"),
        ("requests", "num_rounds", [[2]], "num_rounds", "add up to the 3 rows"),
        ("rounds", "start", [0, 3, 3], "start", "must ascend strictly"),
        ("rounds", "accepted", [2, -3, 0], "accepted", "must be >= 0"),
        ("rounds", "accepted", [2, 2**31 - 1, 0], "accepted", "must end within the output"),
        ("rounds", "drafted", [1, -1, 4], "drafted", "must be >= accepted"),
        ("rounds", "draft_s", [None, -1.0, None], "draft_s", "must be > 0 and finite"),
    ],
)
def test_a_signed_file_is_checked_as_a_writer_is(tmp_path, file, column, values, field, rule):
    write(tmp_path / "t.trace", a_request())
    edit_table(tmp_path / "t.trace", f"{file}.parquet", lambda table: with_column(table, column, values))
    error = refusal(tmp_path / "t.trace", read_rounds)
    assert error.field == field
    assert rule in error.rule


def test_no_request_and_one_identifier_twice(tmp_path):
    with pytest.raises(TraceFormatError, match="must name at least one request"):
        write(tmp_path / "t.trace")
    with pytest.raises(TraceFormatError, match="id: must be unique, got 'a'"):
        write(tmp_path / "t.trace", a_request(), a_request())


def test_the_first_of_several_breaches_is_named(tmp_path):
    bad = replace(a_request(), request_id="b", rounds={"d": a_round(accepted=ints(-1, 3, -2))})
    with pytest.raises(TraceFormatError, match=r"accepted: must be >= 0 \(request 'b', drafter 'd', round 0\), got -1"):
        write(
            tmp_path / "t.trace",
            a_request(),
            bad,
            a_request(request_id="c", rounds={"d": a_round(accepted=ints(-5, 0, 0))}),
        )


# What a recording holds, counted.

MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
# Tokens per step, SpS and EAGLE.
PUBLISHED = {"mt_bench": (2.62, 3.84), "translation": (1.51, 2.84), "summarization": (2.73, 3.31),
             "qa": (2.32, 3.11), "math_reasoning": (2.25, 3.92), "rag": (2.77, 3.21)}  # fmt: skip


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
    all_kept = sequential(np.ones(20, bool), window=6)
    assert acceptance_lengths(all_kept, 20).tolist() == [7, 7, 7]


@pytest.mark.skipif(data_folder() is None, reason="no folder of real data beside the checkout, nor in PACELINE_DATA")
def test_tokens_per_round_of_spec_bench_are_those_published():
    trace = read_recording("spec-bench", sorted((data_folder() / "specbench_yukiki").glob("*.jsonl.gz")))
    grouped = tuple(
        replace(request, tag="mt_bench" if request.tag in MT_BENCH else request.tag) for request in trace.requests
    )
    found = {
        tag: (group.methods["sps"].tokens_per_round, group.methods["eagle"].tokens_per_round)
        for tag, group in replace(trace, requests=grouped).summary().by_tag.items()
    }
    assert found == {tag: pytest.approx(rates, abs=0.01) for tag, rates in PUBLISHED.items()}
