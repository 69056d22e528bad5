"""Observed runs: what is written is read, what is not sound is refused, and results of benchmarks are runs too."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.runs.observed import (
    FOLLOWS,
    ObservedAcceptance,
    is_observed,
    read_bench,
    read_observed,
    read_run,
    write_observed,
)
from paceline.studies.observed_runs import drafts_of, replayed_requests
from paceline.traces.errors import TraceFormatError

from ..traces.making import edit_meta
from .making import END_PS, OBSERVED, observed_run

MS = 10**9  # picoseconds
maybe = st.none() | st.integers(1, 1000)


@st.composite
def requests(draw):
    found = []
    for number in range(draw(st.integers(0, 4))):
        times = sorted(draw(st.lists(st.integers(0, END_PS), min_size=3, max_size=8)))
        failed = draw(st.sampled_from(["", "HTTP 500: no"]))
        changes = {"request_id": f"r{number}", "tag": draw(st.sampled_from(["", "code"])), "failed": failed}
        changes |= {"due_at_ps": times[0], "sent_at_ps": times[1], "outputs_at_ps": tuple(times[2:-1])}
        changes |= {"ended_at_ps": times[-1] if failed or draw(st.booleans()) else None}
        counted = ("prompt_tokens", "output_tokens", "cached_tokens", "drafted", "accepted")
        changes |= {name: draw(maybe) for name in counted}
        found.append(replace(OBSERVED, asked_tokens=draw(st.integers(1, 9)), **changes))
    return tuple(found)


@given(requests())
def test_what_is_written_is_read(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("run") / "run"
    acceptance = ObservedAcceptance(source="s", drafts=3, accepted_by_place=(2, 1))
    run = observed_run(*found, acceptance=acceptance, notes=("n",))
    write_observed(run, path)
    read = read_observed(path)
    assert (read.meta, read.requests) == (run.meta, run.requests)
    assert is_observed(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"request_id": ""}, "request_id: must not be empty"),
        ({"sent_at_ps": 0}, "outputs_at_ps: must be in order"),
        ({"outputs_at_ps": (4, 3)}, "outputs_at_ps: must be in order"),
        ({"ended_at_ps": 3}, "ended_at_ps: must not be before the last chunk"),
        ({"ended_at_ps": END_PS + 1}, "ended_at_ps: must not be after the end of the run"),
        ({"ended_at_ps": None, "failed": "x"}, "ended_at_ps: must be there of a request that failed"),
        ({"prompt_tokens": 0}, "prompt_tokens: must be in [1, "),
        ({"output_tokens": -1}, "output_tokens: must be in [0, "),
    ],
)
def test_rows_that_are_not_sound_are_refused(tmp_path, change, said):
    write_observed(observed_run(OBSERVED, replace(OBSERVED, **{"request_id": "s"} | change)), tmp_path / "run")
    with pytest.raises(TraceFormatError) as refused:
        read_observed(tmp_path / "run")
    assert f"requests.parquet: {said}" in str(refused.value)
    assert "(row 1)" in str(refused.value)


def test_a_closed_loop_has_a_concurrency(tmp_path):
    write_observed(observed_run(), tmp_path / "run")
    edit_meta(tmp_path / "run", lambda meta: meta.update(loop="closed"))
    with pytest.raises(TraceFormatError, match="concurrency must be there of a closed loop alone"):
        read_observed(tmp_path / "run")
    assert not is_observed(tmp_path)


RESULT = {"completed": 3, "request_rate": float("inf"), "max_concurrency": None, "input_lens": [5, 6, 7],
          "output_lens": [3, 1, 2], "ttfts": [0.010, 0.020, 0.030], "itls": [[0.001, 0.002], [], [0.004]]}  # fmt: skip


@pytest.fixture
def read(tmp_path):
    def reading(**more):
        (tmp_path / "bench.json").write_text(json.dumps(RESULT | more))
        return read_bench(tmp_path / "bench.json")

    return reading


def test_requests_have_the_seconds_of_the_result(read):
    run = read(start_times=[100.5, 100.25, 101.0], errors=["", "", "reset by peer"], model_id="m")
    assert [one.request_id for one in run.requests] == ["2", "1", "3"]
    second, first, third = run.requests
    assert (first.sent_at_ps, first.prompt_tokens, first.output_tokens) == (250 * MS, 5, 3)
    assert first.outputs_at_ps == (260 * MS, 261 * MS, 263 * MS)
    assert first.ended_at_ps == 263 * MS
    assert (second.sent_at_ps, second.outputs_at_ps) == (0, (20 * MS,))
    assert third.failed == "reset by peer"
    assert (run.meta.model, run.meta.loop, run.meta.notes) == ("m", "open", ())
    assert len(run.finished) == 2
    # An error of many lines is one line of text.
    errors = ["", "", "Traceback:\n  \x1b[31mreset\n" + "x" * 400]
    _, _, third = read(start_times=[1, 2, 3], errors=errors).requests
    assert third.failed.startswith("Traceback: \\x1b[31mreset xx")
    assert third.failed.endswith("...")
    assert len(third.failed) == 300


def test_drafts_are_those_of_the_counters_of_a_result_or_known_by_a_mean(read):
    assert read().meta.acceptance is None
    counts = {"spec_decode_num_drafts": 4, "spec_decode_draft_tokens": 12, "spec_decode_accepted_tokens": 6}
    told = read(**counts, spec_decode_per_position_acceptance_rates=[0.75, 0.5, 0.25]).meta.acceptance
    assert (told.drafts, told.drafted, told.accepted, told.accepted_by_place) == (4, 12, 6, (3, 2, 1))
    run = read(**counts)
    assert run.meta.acceptance.accepted_by_place is None
    assert drafts_of(replayed_requests(run, "run"), run.meta, None).policy == "draft:3/target"
    assert read(accept_length=None).meta.acceptance is None
    told = read(accept_length=2.5).meta.acceptance
    assert (told.accept_length, told.drafts) == (2.5, None)
    with pytest.raises(ArgumentError, match="say it, as in run=3 for K = 3"):
        drafts_of(replayed_requests(run, "run"), read(accept_length=2.5).meta, None)
    with pytest.raises(TraceFormatError, match="spec_decode_accepted_tokens: must be there"):
        read(**counts | {"spec_decode_accepted_tokens": None})


def test_a_mean_since_the_servers_start_does_not_override_the_chunks_of_the_run(read):
    answers = {"output_lens": [7, 9, 5], "itls": [[0.01] * 4, [0.01] * 3, [0.01] * 2]}
    run = read(**answers, accept_length=3.9)
    drafts = drafts_of(replayed_requests(run, "run"), run.meta, 3)
    assert drafts.rounds == (4, 3, 2)
    assert drafts.told_by.startswith("a chunk is taken for a round")
    tokenwise = {"output_lens": [5, 4, 3], "itls": [[0.01] * 4, [0.01] * 3, [0.01] * 2]}
    run = read(**tokenwise, accept_length=2.5)
    with pytest.raises(ArgumentError, match="does not tell how many drafted tokens stayed"):
        drafts_of(replayed_requests(run, "run"), run.meta, 3)


def test_without_starts_an_infinite_rate_sends_all_at_once_or_when_a_place_is_free(read):
    for rate in (float("inf"), "inf"):
        run = read(request_rate=rate)
        assert [one.sent_at_ps for one in run.requests] == [0, 0, 0]
        assert run.meta.notes == (FOLLOWS,)
        run = read(request_rate=rate, max_concurrency=2)
        assert [one.sent_at_ps for one in run.requests] == [0, 0, 13 * MS]  # the first ended before the second
        assert (run.meta.loop, run.meta.concurrency) == ("closed", 2)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"request_rate": 3.0}, "start_times: must be there, where request_rate is finite"),
        ({"request_rate": None}, "start_times: must be there"),
        ({"ttfts": None}, "ttfts: must be there"),
        ({"ttfts": [0.1]}, "ttfts: must hold one entry for each of the 3 requests, got 1"),
        ({"ttfts": [0.1, -1, 0.1]}, "ttfts[1]: must be seconds in [0, 1e+09], got -1"),
        ({"itls": [[0.1, float("nan")], [], []]}, "itls[0][1]: must be seconds in [0, 1e+09], got nan"),
        ({"itls": [1, [], []]}, "itls.0: must be a list"),
        ({"start_times": [0, "x", 1]}, "start_times[1]: must be seconds, got 'x'"),
        ({"output_lens": [3, 1.5, 2]}, "output_lens[1]: must be a whole number"),
        ({"max_concurrency": 0}, "max_concurrency: must be a whole number in [1,"),
        ({"itls": [[], [], []]}, "itls: must have a gap in some answer: none was streamed"),
    ],
)
def test_what_does_not_do_is_refused_by_its_field(read, more, told):
    with pytest.raises(TraceFormatError) as error:
        read(**more)
    assert told in str(error.value)


def test_a_run_may_be_a_folder_or_a_result_but_not_several(tmp_path, read):
    run = read()
    write_observed(run, tmp_path / "run")
    assert read_run(tmp_path / "run").requests == read_run(tmp_path / "bench.json").requests == run.requests
    path = tmp_path / "two.jsonl"
    path.write_text(f"{json.dumps(RESULT)}\n{json.dumps(RESULT)}")
    with pytest.raises(TraceFormatError, match="must hold one result, got 'several'"):
        read_run(path)
